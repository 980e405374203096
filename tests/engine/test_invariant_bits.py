"""A row's bits do not depend on its neighbours: each kernel sums in one order, whatever else it computes."""

import mlx.core as mx
import pytest

from accelerated import fused_operations
from accelerated import integer_matmul as integers
from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.cpu_kernel import CpuKernel
from tests.engine.test_integer_matmul import make_weights
from tests.support.bits import ROWS, check_bits, check_rows
from tests.support.check import normal
from tests.support.cpu_kernels import TARGETS, compiled_for
from tests.support.quantized_blocks import draw_quantized, in_chunks
from tests.support.ragged import Shape, draw
from tiny_llm import ExpertWeights
from tiny_llm.kernels import (
    dispatch_attention,
    dispatch_grouped_matmul,
    dispatch_paged_attention,
    dispatch_quantized_attention,
)
from tiny_llm.kernels import quantized_matmul as floats

pytestmark = pytest.mark.usefixtures("on_cpu")
DTYPES = (mx.float32, mx.bfloat16)
KERNELS = {
    "INTEGER": integers,
    "SIMD": floats,
    "GROUPED_MATMUL": dispatch_grouped_matmul,
    "FLASH_ATTENTION": dispatch_attention,
    "PAGED_ATTENTION": dispatch_paged_attention,
    "QUANTIZED_PAGED_ATTENTION": dispatch_quantized_attention,
    "RMS_NORM": fused_operations,
    "ROPE": fused_operations,
    "SPLIT_HEADS": fused_operations,
    "SWIGLU": fused_operations,
    "SWIGLU_HALVES": fused_operations,
}
"""The module of each CPU kernel, by the name that it has there."""


@pytest.fixture(params=[None, *TARGETS], ids=["this processor", *TARGETS])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Every CPU kernel, compiled for each of the processors."""
    target: str | None = request.param
    if target is not None:
        for name, module in KERNELS.items():
            kernel = getattr(module, name)
            assert isinstance(kernel, CpuKernel)
            monkeypatch.setattr(module, name, compiled_for(target, kernel, monkeypatch))
    return target


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("way", ["whole numbers", "vectors"])
def test_products(
    way: str, group_size: int, bits: int, dtype: mx.Dtype, target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floats, "MAX_FUSED_ROWS", floats.NO_LIMIT)  # as with TINY_LLM_INVARIANT=1
    multiply = integers.integer_matmul if way == "whole numbers" else floats.quantized_matmul
    chunks = range(1, ROWS + 1) if target is None and group_size == 64 else (1, 3, 8, 16, 17, 23, 64)
    for N, K in ((71, 1152), (33, group_size), (5, 10 * group_size)):
        weights = make_weights(N, K, bits, group_size)
        x = normal(ROWS, K, seed=3, dtype=dtype)
        check_rows(lambda x, w=weights: multiply(x, w), x, f"[{K}] times [{N}, {K}]", chunks)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_products_with_experts(group_size: int, bits: int, dtype: mx.Dtype, target: str | None) -> None:
    """Each row with its expert as a last column, so that both are cut in the same chunks."""
    chunks = (1, 3, 8, 16, 17, 23, 64)
    experts = mx.array([0] * 3 + [2] * 30 + [3] * 9 + [4] + [6] * 27)[:, None]
    for N, K in ((53, 384), (33, group_size)):
        weights = ExpertWeights(make_weights(7 * N, K, bits, group_size), 7)
        x = mx.concatenate([normal(ROWS, K, seed=3, dtype=dtype), experts.astype(dtype)], axis=1)

        def multiply(rows: mx.array, weights: ExpertWeights = weights) -> mx.array:
            experts = rows[:, -1].astype(mx.int32)
            return dispatch_grouped_matmul.grouped_matmul_cpu(rows[:, :-1], experts, weights)

        check_rows(multiply, x, f"rows of [{K}] by experts [7, {N}, {K}]", chunks)


def attend_in_chunks(arrays: list[mx.array], size: int) -> mx.array:
    """Causal attention of a prompt that comes in chunks, [1, H_q, L, D]."""
    query, key, value = arrays
    outputs = []
    for start in range(0, query.shape[2], size):
        end = min(start + size, query.shape[2])
        chunk = (query[:, :, start:end], key[:, :, :end], value[:, :, :end])
        outputs.append(dispatch_attention.dispatch_attention(*chunk, mask="causal"))
    return mx.concatenate(outputs, axis=2)


def heads(H_q: int, H: int, L: int, D: int, dtype: mx.Dtype) -> list[mx.array]:
    """Query, key and value of a prompt."""
    return [normal(1, count, L, D, seed=seed, dtype=dtype) for seed, count in enumerate((H_q, H, H))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("H_q", "H"), [(2, 2), (6, 2), (9, 1)])
@pytest.mark.parametrize("D", [16, 64, 80])
def test_attention_of_chunks(D: int, H_q: int, H: int, dtype: mx.Dtype, target: str | None) -> None:
    arrays = heads(H_q, H, 555, D, dtype)
    expected = attend_in_chunks(arrays, 555)
    for size in (1, 2, 3, 5, 8, 9, 32, 33, 64, 100, 256, 300):
        check_bits(attend_in_chunks(arrays, size), expected, f"chunks of {size}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("L", [1, 2, 40])
def test_attention_beside_longer_rows(L: int, dtype: mx.Dtype, target: str | None) -> None:
    """What the mask hides leaves no trace, be it a key, a block or a part of the keys."""
    S, H_q, H, D = 300, 6, 2, 64
    query, key, value = heads(H_q, H, S, D, dtype)
    query = query[:, :, S - L :]
    expected = dispatch_attention.dispatch_attention(query, key, value, mask="causal")
    for longer in (301, 320, 511, 700):
        padded = [
            mx.concatenate([x, 9 * normal(1, H, longer - S, D, seed=7, dtype=dtype)], 2) for x in (key, value)
        ]
        batch = [mx.concatenate([2 * mx.ones_like(x), x]) for x in (query, *padded)]
        is_visible = mx.arange(longer) <= mx.arange(S - L, S)[:, None]
        mask = mx.where(mx.stack([mx.ones((L, longer)) > 0, is_visible]), 0.0, -mx.inf)[:, None].astype(dtype)
        output = dispatch_attention.dispatch_attention(*batch, mask=mask)[1:]
        check_bits(output, expected, f"{S} keys beside a row of {longer}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [16, 64])
def test_attention_in_blocks(D: int, dtype: mx.Dtype, target: str | None) -> None:
    """The same queries and keys in blocks of any size, cut in any chunks, with and without neighbours."""
    whole = Shape((40, 300), (555, 300), 6, 2, D, 16)
    arrays = draw(whole, dtype, seed=5)
    key, value = (
        mx.array(x[0]).astype(dtype).swapaxes(0, 1)[None] for x in (arrays.own_keys, arrays.own_values)
    )
    query = arrays.query[:40].swapaxes(0, 1)[None]
    expected = dispatch_attention.dispatch_attention(query, key, value, mask="causal")[0].swapaxes(0, 1)
    for block_size in (1, 5, 16, 300):
        ragged = draw(Shape((40, 300), (555, 300), 6, 2, D, block_size), dtype, seed=5)
        together = dispatch_paged_attention.dispatch_paged_attention(*ragged.arguments)[:40]
        check_bits(together, expected, f"beside another sequence, blocks of {block_size}")
        for size in (1, 2, 7, 33):
            parts = []
            for start in range(0, 40, size):
                end = min(start + size, 40)
                places = mx.array([0, end - start]), mx.array([515 + end])
                layout = BlockLayout(ragged.layout.block_tables[:1], *places)
                parts.append(
                    dispatch_paged_attention.dispatch_paged_attention(
                        ragged.query[start:end], ragged.keys, ragged.values, layout
                    )
                )
            check_bits(mx.concatenate(parts), expected, f"chunks of {size} in blocks of {block_size}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 5, 16, 70])
def test_attention_in_quantized_blocks(block_size: int, dtype: mx.Dtype, target: str | None) -> None:
    """The same queries, cut in any chunks, with and without neighbours."""
    batch = draw_quantized(Shape((40, 300), (555, 300), 6, 2, 64, block_size), dtype, seed=5)
    attend = dispatch_quantized_attention.dispatch_quantized_attention
    expected = attend(*batch.arguments)[:40]
    for size in (1, 2, 3, 7, 33, 40):
        for is_beside in (False, True):
            chunks = in_chunks(attend, batch, size, is_beside)
            check_bits(chunks, expected, f"chunks of {size} in blocks of {block_size}, {is_beside=}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [61, 576, 3 * 16384 // 61 + 1])
def test_small_operations(size: int, dtype: mx.Dtype, target: str | None) -> None:
    x, weight = normal(ROWS, size, seed=1, dtype=dtype), normal(size, seed=2, dtype=dtype)
    check_rows(lambda x: fused_operations.rms_norm(x, weight, 1e-5), x, f"rms_norm of {size}")
    check_rows(lambda x: fused_operations.swiglu(x, -x), x, f"swiglu of {size}")
    halves = normal(ROWS, 2 * size, seed=1, dtype=dtype)
    check_rows(fused_operations.swiglu_halves, halves, f"swiglu_halves of {size}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("are_neighbours", [False, True])
@pytest.mark.parametrize("D", [18, 64])
def test_rotations(D: int, are_neighbours: bool, dtype: mx.Dtype, target: str | None) -> None:
    """Rows at the same position, as those of one chunk and as those of a batch."""
    tables = normal(2, ROWS, D // 2, seed=3)
    heads = normal(1, ROWS, 3, D, seed=4, dtype=dtype)
    expected = fused_operations.rotate(heads, *tables, [0], are_neighbours)
    rows = fused_operations.rotate(heads.swapaxes(0, 1), *tables, list(range(ROWS)), are_neighbours)
    check_bits(rows.swapaxes(0, 1), expected, "rotate, as a batch")
    product, norms = heads.reshape(1, ROWS, 3 * D), (*normal(2, D, seed=5, dtype=dtype), 1e-5)

    def split(product: mx.array, first: list[int]) -> list[mx.array]:
        return fused_operations.split_heads(product, 1, 1, tuple(tables), norms, first, are_neighbours)

    batch = split(product.swapaxes(0, 1), list(range(ROWS)))
    for whole, row, name in zip(split(product, [0]), batch, ("query", "key", "value"), strict=True):
        check_bits(row.swapaxes(0, 2), whole, f"split_heads, {name} of a batch")
