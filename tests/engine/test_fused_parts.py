"""Fused parts: the same numbers as those of week 1, for every model and every pass."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated.fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from accelerated.fused_parts import FusedNorm, FusedRope, fused_heads, fused_mlp, joined
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.checkpoints import VARIANTS, build, save
from tests.support.cpu_kernels import poison, use_device
from tests.support.passes import PASSES
from tiny_llm.kernels.dispatch_attention import dispatch_attention
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.dense_kv_cache import TinyKvFullCache
from tiny_llm.model.loader import load_model
from tiny_llm.model.operations import Operations
from tiny_llm.model.qwen3 import HeadProjection
from tiny_llm.ops.basics import as_projection
from tiny_llm.ops.positional_encoding import RoPE
from tiny_llm.ops.quantize import QuantizedProjection, QuantizedWeights, quantize_weights

pytestmark = pytest.mark.usefixtures("on_cpu")
FUSED = Operations(FusedNorm, FusedRope, fused_mlp, fused_heads, dispatch_attention, quantized_matmul)
MODELS = ("qwen3-4bit", "qwen3-8bit-bfloat16", "qwen2-4bit", "llama-mixed-bits", "llama-traditional", "qwen3")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    chosen = [variant for variant in VARIANTS if variant.name in MODELS]
    return {variant.name: save(variant, build(variant), folder / variant.name) for variant in chosen}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PASSES)
def test_a_model_of_fused_parts_gives_the_same_logits(
    kind: str, name: str, checkpoints: dict[str, Path]
) -> None:
    plain = load_model(checkpoints[name], mx.float32)
    fused = load_model(checkpoints[name], mx.float32, FUSED)
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
    fused = load_model(checkpoints[name], mx.float32, FUSED)
    caches = [AttendsByItself() for _ in fused.layers]
    tokens = mx.array([[5, 3, 7, 2, 11]])
    check_close(fused(tokens, 0, caches), fused(tokens), f"logits of {name}", tolerance=1e-5)
    check_equal([len(cache.shapes) for cache in caches], [1] * len(caches), "calls of attend, by layer")


@pytest.mark.parametrize("name", MODELS)
def test_products_of_projections_packed_alike_are_one(name: str, checkpoints: dict[str, Path]) -> None:
    """Queries, keys and values of a layer are one product, gate and up another, biases included."""
    shapes = []

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        shapes.append(weights.shape)
        return quantized_matmul(x, weights)

    model = load_model(checkpoints[name], mx.float32, replace(FUSED, matmul=matmul))
    model(mx.array([[1, 2, 3]]))
    config, num_joined = model.config, len(model.layers) * (name not in ("qwen3", "llama-traditional"))
    kv_size = config.num_key_value_heads * config.head_dim
    qkv_size = config.num_attention_heads * config.head_dim + 2 * kv_size
    sizes = (qkv_size, 2 * config.intermediate_size, kv_size)
    counts = [shapes.count((size, config.hidden_size)) for size in sizes]
    check_equal(counts, [num_joined, num_joined, 0], "products for q, k and v, for gate and up, for k")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_parts_for_a_gpu_gives_the_same_logits(
    name: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_model(checkpoints[name], mx.float32)
    use_device(mx.gpu, monkeypatch)
    operations = replace(FUSED, rope=RoPE, project_heads=HeadProjection)
    fused = load_model(checkpoints[name], mx.float32, operations)
    for kind, run in PASSES.items():
        check_close(run(fused), run(plain), f"logits {kind} of {name}", tolerance=1e-4)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("traditional", [False, True])
def test_split_heads(traditional: bool, has_norms: bool) -> None:
    B, L, H_q, H, D = 3, 5, 6, 2, 16
    product = normal(B, L, (H_q + 2 * H) * D, seed=1)
    rope = FusedRope(D, 40, traditional=traditional)
    weights = normal(2, D, seed=2)
    norms = (weights[0], weights[1], 1e-3) if has_norms else None
    first = [7, 0, 35]
    poison(B, H_q, L, D)
    actual = split_heads(product, H_q, H, rope.tables, norms, first, traditional)

    heads = product.reshape(B, L, H_q + 2 * H, D)
    query, key, value = heads[:, :, :H_q], heads[:, :, H_q : H_q + H], heads[:, :, H_q + H :]
    if has_norms:
        query, key = (rms_norm(x, weight, 1e-3) for x, weight in zip((query, key), weights, strict=True))
    query, key = (rotate(x, *rope.tables, first, traditional) for x in (query, key))
    for what, one, other in zip(("query", "key", "value"), actual, (query, key, value), strict=True):
        check_close(one, other.swapaxes(1, 2), what, tolerance=1e-6)


def test_split_heads_keeps_the_type() -> None:
    rope = FusedRope(16, 8)
    tables = rope.tables
    heads = split_heads(normal(1, 2, 64, seed=1, dtype=mx.bfloat16), 2, 1, tables, None, [0])
    check_equal([each.dtype for each in heads], [mx.bfloat16] * 3, "types of query, key and value")


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
def test_joined_projections(bias: bool) -> None:
    x = normal(2, 3, 64, seed=9)
    each = [projection(outputs, bias, seed=outputs) for outputs in (48, 16, 17)]
    whole = joined(*each)
    assert whole is not None
    expected = mx.concatenate([one(x) for one in each], axis=-1)
    check_close(whole(x), expected, "one product for three", tolerance=1e-6)


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
        assert joined(projection(16), other) is None


def test_heads_of_another_size_are_refused() -> None:
    with check_value_error(dims=16, D=32):
        FusedRope(16, 8)(normal(1, 2, 1, 32, seed=1))


def test_positions_beyond_the_tables_are_refused(checkpoints: dict[str, Path]) -> None:
    plain, fused = (
        load_model(checkpoints["qwen3-4bit"], mx.float32, operations) for operations in (Operations(), FUSED)
    )
    beyond = plain.config.max_position_embeddings
    for model in (plain, fused):
        with check_value_error(seq_len=beyond):
            model(mx.array([[1, 2]]), beyond - 1)
