"""Fused attention: the same numbers as the attention that it extends, for every model and every pass."""

from pathlib import Path

import mlx.core as mx
import pytest

from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.checkpoints import VARIANTS, build, save
from tests.support.cpu_kernels import poison, use_device
from tests.support.passes import PASSES
from tiny_llm.given.fused_parts import FusedAttention, FusedMLP, FusedRMSNorm, FusedRoPE, cut_like, joined
from tiny_llm.kernels.dispatch_attention import can_merge, dispatch_attention, flash_attention_merged
from tiny_llm.kernels.given.fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.dense_kv_cache import TinyKvFullCache
from tiny_llm.model.loader import Parts
from tiny_llm.model.packed_loader import load_packed_model
from tiny_llm.ops.basics import as_projection
from tiny_llm.ops.flash_attention import flash_attention
from tiny_llm.ops.quantize import QuantizedProjection, QuantizedWeights, quantize_weights

pytestmark = pytest.mark.usefixtures("on_cpu")
PARTS = Parts(FusedRMSNorm, FusedRoPE, FusedMLP, FusedAttention)
MODELS = ("qwen3-4bit", "qwen3-8bit-bfloat16", "qwen2-4bit", "llama-mixed-bits", "llama-traditional", "qwen3")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    chosen = [variant for variant in VARIANTS if variant.name in MODELS]
    return {variant.name: save(variant, build(variant), folder / variant.name) for variant in chosen}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PASSES)
def test_a_model_of_fused_attention_gives_the_same_logits(
    kind: str, name: str, checkpoints: dict[str, Path]
) -> None:
    plain = load_packed_model(checkpoints[name], mx.float32)
    fused = load_packed_model(checkpoints[name], mx.float32, dispatch_attention, quantized_matmul, PARTS)
    check_close(PASSES[kind](fused), PASSES[kind](plain), f"logits {kind} of {name}", tolerance=1e-4)


class AttendsByItself(TinyKvFullCache):
    """A cache that hands out no keys: what a cache in blocks is."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def attend(self, query, key, value, attention, mask=None):
        self.shapes.append(query.shape)
        return dispatch_attention(query, key, value, mask=mask)

    def update_and_fetch(self, key, value, mask=None):
        raise AssertionError("asked for all keys and values")


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_may_attend_by_itself(name: str, checkpoints: dict[str, Path]) -> None:
    fused = load_packed_model(checkpoints[name], mx.float32, dispatch_attention, quantized_matmul, PARTS)
    caches = [AttendsByItself() for _ in fused.layers]
    tokens = mx.array([[5, 3, 7, 2, 11]])
    check_close(fused(tokens, 0, caches), fused(tokens), f"logits of {name}", tolerance=1e-5)
    check_equal([len(cache.shapes) for cache in caches], [1] * len(caches), "calls of attend, by layer")


def test_what_packed_models_are_made_of(checkpoints: dict[str, Path]) -> None:
    """One product a layer where the projections are packed alike, biases included; none for plain ones."""
    for name in MODELS:
        layers = load_packed_model(checkpoints[name], mx.float32, parts=PARTS).layers
        is_packed = [name not in ("qwen3", "llama-traditional")] * len(layers)
        has_one = [layer.attention._fused_product is not None for layer in layers]
        check_equal(has_one, is_packed, f"layers of {name} with one product for queries, keys and values")
        has_one = [layer.mlp._fused_gate_up is not None for layer in layers]
        check_equal(has_one, is_packed, f"layers of {name} with one product for gate and up")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_parts_for_a_gpu_gives_the_same_logits(
    name: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_packed_model(checkpoints[name], mx.float32)
    use_device(mx.gpu, monkeypatch)
    parts = Parts(rms_norm=FusedRMSNorm, mlp=FusedMLP)
    fused = load_packed_model(checkpoints[name], mx.float32, dispatch_attention, quantized_matmul, parts)
    for kind, run in PASSES.items():
        check_close(run(fused), run(plain), f"logits {kind} of {name}", tolerance=1e-4)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("traditional", [False, True])
def test_split_heads(traditional: bool, has_norms: bool) -> None:
    B, L, H_q, H, D = 3, 5, 6, 2, 16
    product = normal(B, L, (H_q + 2 * H) * D, seed=1)
    rope = FusedRoPE(D, 40, traditional=traditional)
    weights = normal(2, D, seed=2)
    norms = (weights[0], weights[1], 1e-3) if has_norms else None
    first = [7, 0, 35]
    poison(B, H_q, L, D)
    actual = split_heads(product, H_q, H, (rope.fused_cos, rope.fused_sin), norms, first, traditional)

    heads = product.reshape(B, L, H_q + 2 * H, D)
    query, key, value = heads[:, :, :H_q], heads[:, :, H_q : H_q + H], heads[:, :, H_q + H :]
    if has_norms:
        query, key = (rms_norm(x, weight, 1e-3) for x, weight in zip((query, key), weights, strict=True))
    query, key = (rotate(x, rope.fused_cos, rope.fused_sin, first, traditional) for x in (query, key))
    for what, one, other in zip(("query", "key", "value"), actual, (query, key, value), strict=True):
        check_close(one, other.swapaxes(1, 2), what, tolerance=1e-6)


def test_split_heads_keeps_the_type() -> None:
    rope = FusedRoPE(16, 8)
    tables = (rope.fused_cos, rope.fused_sin)
    heads = split_heads(normal(1, 2, 64, seed=1, dtype=mx.bfloat16), 2, 1, tables, None, [0])
    check_equal([each.dtype for each in heads], [mx.bfloat16] * 3, "types of query, key and value")


def test_attention_with_its_heads_side_by_side() -> None:
    query, key, value = normal(3, 6, 5, 32, seed=1), normal(3, 2, 9, 32, seed=2), normal(3, 2, 9, 32, seed=3)
    poison(3, 5, 192)
    for mask in (None, "causal", normal(3, 1, 5, 9, seed=4)):
        expected = dispatch_attention(query, key, value, 0.3, mask).swapaxes(1, 2).reshape(3, 5, 192)
        merged = flash_attention_merged(query, key, value, 0.3, mask)
        check_close(merged, expected, "heads side by side", tolerance=0)
    which = [
        can_merge(dispatch_attention, 32),
        can_merge(dispatch_attention, 24),
        can_merge(flash_attention, 32),
    ]
    check_equal(which, [True, False, False], "which attention can be merged")


@pytest.mark.parametrize("size", [3, 64, 101])
def test_swiglu_of_the_halves_of_a_product(size: int) -> None:
    product = 5 * normal(3, 7, 2 * size, seed=4)
    poison(3, 7, size)
    expected = swiglu(product[..., :size], product[..., size:])
    check_close(swiglu_halves(product), expected, "silu(first half) x second half", tolerance=1e-6)
    check_equal(swiglu_halves(product.astype(mx.float16)).dtype, mx.float16, "type")


def projection(outputs: int, bias: bool = False, bits: int = 4, seed: int = 1) -> QuantizedProjection:
    weights = quantize_weights(normal(outputs, 64, seed=seed), 64, bits)
    return QuantizedProjection(weights, normal(outputs, seed=seed + 1) if bias else None, quantized_matmul)


@pytest.mark.parametrize("bias", [False, True])
def test_joined_projections_and_their_parts(bias: bool) -> None:
    x = normal(2, 3, 64, seed=9)
    each = [projection(outputs, bias, seed=outputs) for outputs in (48, 16, 17)]
    whole = joined(each)
    assert whole is not None
    expected = mx.concatenate([one(x) for one in each], axis=-1)
    check_close(whole(x), expected, "one product for three", tolerance=1e-6)
    parts = cut_like(whole, each)
    check_close(mx.concatenate([part(x) for part in parts], axis=-1), expected, "parts", tolerance=1e-6)


def test_projections_that_cannot_be_joined() -> None:
    plain = as_projection(normal(8, 64, seed=3))
    coarse = QuantizedWeights(*mx.quantize(normal(8, 64, seed=4), group_size=32, bits=4), 32, 4)
    for other in (
        plain,
        projection(8, bits=8),
        projection(8, bias=True),
        QuantizedProjection(coarse, None, quantized_matmul),
        QuantizedProjection(projection(8).weights),
    ):
        assert joined([projection(16), other]) is None


def test_positions_beyond_the_tables_are_refused(checkpoints: dict[str, Path]) -> None:
    plain, fused = (
        load_packed_model(checkpoints["qwen3-4bit"], mx.float32, parts=parts) for parts in (Parts(), PARTS)
    )
    beyond = plain.config.max_position_embeddings
    for model in (plain, fused):
        with check_value_error(str(beyond)):
            model(mx.array([[1, 2]]), beyond - 1)
