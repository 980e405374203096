"""MLX's own operations in the place of a model's parts: they compute what the plain parts compute."""

import mlx.core as mx
import pytest

from accelerated.mlx_parts import (
    MlxEmbedding,
    MlxNorm,
    MlxRope,
    mlx_attention,
    mlx_matmul,
    mlx_mlp,
    mlx_paged_attention,
)
from tests.support.bits import check_bits
from tests.support.check import check_close, normal
from tests.support.ragged import Shape, draw
from tiny_llm import QuantizedEmbedding, RMSNorm, RoPE, quantize_weights, quantized_matmul_simple
from tiny_llm.model.mlp import Qwen3MLP
from tiny_llm.ops.attention import Mask, scaled_dot_product_attention_grouped
from tiny_llm.ops.basics import as_projection
from tiny_llm.ops.paged_attention import paged_attention_simple
from tiny_llm.ops.positional_encoding import LinearScaling, RopeScaling, YarnScaling

pytestmark = pytest.mark.usefixtures("on_cpu")
TOLERANCES = {mx.float32: 1e-5, mx.bfloat16: 2e-2}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


@every_dtype
@pytest.mark.parametrize("rows", [0, 3])
def test_norm(rows: int, dtype: mx.Dtype) -> None:
    x, weight = normal(2, rows, 67, seed=1, dtype=dtype), normal(67, seed=2)
    actual, expected = MlxNorm(67, weight, 1e-3)(x), RMSNorm(67, weight, 1e-3)(x)
    check_close(actual, expected, "norm", TOLERANCES[dtype])


@every_dtype
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)], ids=str)
def test_embedding(shape: tuple[int, ...], bits: int, dtype: mx.Dtype) -> None:
    weights = quantize_weights(normal(37, 192, seed=1, dtype=dtype), 32, bits)
    tokens = mx.random.randint(0, 37, shape, key=mx.random.key(2))
    actual, expected = (
        make(37, 192, weights, quantized_matmul_simple)(tokens) for make in (MlxEmbedding, QuantizedEmbedding)
    )
    check_close(actual, expected, "vectors", TOLERANCES[dtype])


@every_dtype
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, LinearScaling(4), YarnScaling(4, 64, 1.3)], ids=str)
@pytest.mark.parametrize("offset", [None, 250, [3, 0, 290], slice(7, 12)])
def test_rope(
    offset: int | slice | list[int] | None, scaling: RopeScaling | None, traditional: bool, dtype: mx.Dtype
) -> None:
    x = normal(3, 5, 2, 16, seed=1, dtype=dtype)
    actual, expected = (make(16, 300, 5000, traditional, scaling)(x, offset) for make in (MlxRope, RoPE))
    check_close(actual, expected, "rotation", TOLERANCES[dtype] * 10)


@pytest.mark.parametrize(("D", "offset"), [(8, 0), (16, 296), (16, -1), (16, [1, 2])])
def test_rope_refuses_what_the_plain_one_refuses(D: int, offset: int | list[int]) -> None:
    for make in (RoPE, MlxRope):
        with pytest.raises(ValueError, match=r"RoPE|offsets"):
            make(16, 300)(normal(3, 5, 2, D, seed=1), offset)


@every_dtype
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul(bits: int, dtype: mx.Dtype) -> None:
    x, weights = normal(2, 3, 192, seed=1, dtype=dtype), quantize_weights(normal(37, 192, seed=2), 64, bits)
    check_close(mlx_matmul(x, weights), quantized_matmul_simple(x, weights), "product", TOLERANCES[dtype])
    with pytest.raises(ValueError, match="192"):
        mlx_matmul(x[..., :64], weights)


def test_a_product_on_the_cpu_keeps_a_rows_bits() -> None:
    """So it takes part where bits are promised."""
    for bits in (4, 8):
        x, weights = normal(300, 576, seed=1), quantize_weights(normal(259, 576, seed=2), 64, bits)
        together = mlx_matmul(x, weights)
        for size in (1, 3, 8, 64, 257):
            parts = [mlx_matmul(x[start : start + size], weights) for start in range(0, 300, size)]
            check_bits(mx.concatenate(parts), together, f"product of {size} rows")


@every_dtype
@pytest.mark.parametrize("L", [0, 1, 7])
@pytest.mark.parametrize("kind", [None, "causal", "array"])
def test_attention(kind: Mask, L: int, dtype: mx.Dtype) -> None:
    query, key, value = (
        normal(2, heads, length, 32, seed=seed, dtype=dtype)
        for seed, (heads, length) in enumerate(((6, L), (2, 40), (2, 40)))
    )
    mask = mx.where(normal(2, 1, L, 40, seed=9) > 0.5, -mx.inf, 0.0) if kind == "array" else kind
    actual = mlx_attention(query, key, value, 0.2, mask)
    expected = scaled_dot_product_attention_grouped(query, key, value, 0.2, mask)
    check_close(actual, expected.astype(dtype), "attention", TOLERANCES[dtype])


@every_dtype
@pytest.mark.parametrize("lengths", [((1, 30), (1, 30)), ((1, 5), (9, 30), (1, 17), (9, 9), (9, 12))])
def test_attention_to_blocks(lengths: tuple[tuple[int, int], ...], dtype: mx.Dtype) -> None:
    counts, contexts = zip(*lengths, strict=True)
    ragged = draw(Shape(counts, contexts, D=32, block_size=5), dtype, seed=5)
    actual, expected = mlx_paged_attention(*ragged.arguments), paged_attention_simple(*ragged.arguments)
    check_close(actual, expected, "attention to blocks", TOLERANCES[dtype])


def test_mlp() -> None:
    projections = [
        as_projection(normal(*shape, seed=i)) for i, shape in enumerate(((96, 64), (96, 64), (64, 96)))
    ]
    for x in (normal(2, 5, 64, seed=7), normal(3, 1, 64, seed=8)):
        check_close(mlx_mlp(64, 96, *projections)(x), Qwen3MLP(64, 96, *projections)(x), "MLP", 1e-5)
