"""Operations of an engine and of experts that are checked but not timed: the kernel is known to be faster."""

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.contest import Contest
from kernel_runtime.paged_check import QuantizedPagedAttention
from kernel_runtime.self_check import close_in, close_products, sample
from tiny_llm.engine.batch_sampler import sample_batch
from tiny_llm.engine.sampling_batch import BatchSampler, SamplingBatch, sample_one_by_one
from tiny_llm.generation.sampler import SamplingParams
from tiny_llm.kernels.dispatch_grouped_matmul import dispatch_grouped_matmul, grouped_matmul_mlx
from tiny_llm.kernels.dispatch_quantized_attention import dispatch_quantized_attention
from tiny_llm.kernels.mask_rows import mask_rows
from tiny_llm.model.engine_operations import MaskRows
from tiny_llm.ops.experts import ExpertWeights, GroupedMatmul, grouped_matmul_simple
from tiny_llm.ops.quantized_blocks import dequantize_heads, quantize_heads, words_per_head
from tiny_llm.ops.quantized_paged_attention import quantized_paged_attention_simple
from tiny_llm.ops.writing import QuantizeBlocks, StoreRows, quantize_blocks_simple, store_rows_simple
from tiny_llm.structured.masks import mask_rows_simple

from .quantize_blocks import quantize_blocks
from .race_inputs import as_quantized, is_on_gpu, packed_in
from .sample_rows import sample_natively
from .store_rows import store_rows

MANY_ROWS = 40
"""MLX has a kernel of its own for at least 16 sorted rows on a Mac's GPU."""


def row_writers(dtype: mx.Dtype) -> Contest[StoreRows]:
    """Rows of a pool, written in place; the C++ function runs on the CPU."""
    new, slots = sample(2, 2, 3).astype(dtype), mx.array([5, 1], mx.int32)

    def compute(store: StoreRows) -> mx.array:
        return store(sample(7, 2, 3).astype(dtype), slots, new)

    return Contest(
        name="stored rows",
        kernel="store_rows",
        candidates={} if is_on_gpu() else {"own": store_rows},
        fallback=store_rows_simple,
        sample=compute,
        expected=lambda: compute(store_rows_simple),
        dtype=dtype,
    )


def block_quantizers(dtype: mx.Dtype) -> Contest[QuantizeBlocks]:
    """Full blocks, quantized in place; the C++ function runs on the CPU."""
    floats, tails, places = sample(3, 2, 2, 64).astype(dtype), mx.array([2, 0]), mx.array([1, 3])

    def compute(quantize: QuantizeBlocks) -> mx.array:
        blank = mx.zeros((4, 2, 2, words_per_head(64, 4)), mx.uint32)
        return dequantize_heads(quantize(blank, places, floats, tails), 64)

    return Contest(
        name="quantized blocks",
        kernel="quantize_blocks",
        candidates={} if is_on_gpu() else {"own": quantize_blocks},
        fallback=quantize_blocks_simple,
        sample=compute,
        expected=lambda: compute(quantize_blocks_simple),
        dtype=dtype,
    )


def quantized_attentions(dtype: mx.Dtype) -> Contest[QuantizedPagedAttention]:
    """Attention to quantized blocks."""
    query, tail_keys = sample(12, 6, 64).astype(dtype), sample(4, 4, 2, 64).astype(dtype)
    tail_values = tail_keys + 1
    keys, values = quantize_heads(tail_keys, 8), quantize_heads(tail_values, 4)
    layout = BlockLayout(mx.array([[3, 1, 2], [0, 2, 1]]), mx.array([0, 11, 12]), mx.array([12, 3]))
    tails = mx.array([*[1] * 3, *[2] * 4, *[0] * 4, 3])

    def compute(attend: QuantizedPagedAttention, dtype: mx.Dtype) -> mx.array:
        blocks = QuantizedBlocks(keys, values, tail_keys.astype(dtype), tail_values.astype(dtype))
        return attend(query.astype(dtype), blocks, layout, tails)

    return Contest(
        name="quantized attention",
        kernel="dispatch_quantized_attention",
        candidates={"own": dispatch_quantized_attention},
        fallback=quantized_paged_attention_simple,
        sample=lambda attend: compute(attend, dtype),
        expected=lambda: compute(quantized_paged_attention_simple, mx.float32),
        close=close_in(dtype),
        dtype=dtype,
    )


def row_masks() -> Contest[MaskRows]:
    """Forbidden tokens masked; the C++ function runs on the CPU."""
    rows, bits = mx.array([2, 0]), mx.array([[0xFFFFFFFF, 5], [0x80000001, 0]], mx.uint32)

    def compute(mask: MaskRows) -> mx.array:
        masked = mask(mx.arange(3 * 37, dtype=mx.float32).reshape(3, 37), rows, bits)
        return mx.where(mx.isinf(masked), -7, masked)

    return Contest(
        name="masks",
        kernel="mask_rows",
        candidates={} if is_on_gpu() else {"own": mask_rows},
        fallback=mask_rows_simple,
        sample=compute,
        expected=lambda: compute(mask_rows_simple),
    )


def batch_samplers() -> Contest[BatchSampler]:
    """Rows sampled in array operations: on every device and in every mode, once `sample_batch` is right."""
    return Contest(
        name="sampler in arrays",
        kernel="sample_batch",
        candidates={"own": sample_batch},
        fallback=sample_one_by_one,
        sample=_drawn,
        expected=_expected_tokens,
        is_kernel=False,
        stand_in="the sampler of day 1.7",
    )


def row_samplers() -> Contest[BatchSampler]:
    """Rows sampled by a C++ function, which runs on the CPU."""
    return Contest(
        name="sampler",
        kernel="sample_rows",
        candidates={} if is_on_gpu() else {"own": sample_natively},
        fallback=sample_batch,
        sample=_drawn,
        expected=_expected_tokens,
    )


def _drawn(sampler: BatchSampler) -> mx.array:
    """Tokens of five rows with the same probabilities."""
    params = (
        SamplingParams(),
        SamplingParams(1),
        SamplingParams(1),
        SamplingParams(1, top_k=2),
        SamplingParams(1, 0.6),
    )
    numbers = np.array([0.9, 0.05, 0.8, 0.1, 0.9]) * 2**64
    logits = mx.log(mx.array([[0.1, 0.2, 0.4, 0.3]] * 5))
    return sampler(logits, SamplingBatch(params, numbers.astype(np.uint64)))


def _expected_tokens() -> mx.array:
    return mx.array([2, 0, 3, 2, 3])


def grouped_matmuls(dtype: mx.Dtype) -> Contest[GroupedMatmul]:
    """Products with the packed weights of many experts, by few rows and by many."""
    packed, x = packed_in(dtype, sample(5 * 7, 64)), sample(MANY_ROWS, 64).astype(dtype)
    few, many = mx.array([0, 2, 2]), mx.array([0] * 24 + [2] * 4 + [4] * 12)

    def compute(matmul: GroupedMatmul, dtype: mx.Dtype) -> mx.array:
        codes, scales, biases = packed
        kind = as_quantized((codes, scales.astype(dtype), biases.astype(dtype)))
        weights = ExpertWeights(kind.weights, 5)
        return mx.concatenate([matmul(x[: each.size].astype(dtype), each, weights) for each in (few, many)])

    return Contest(
        name="grouped matmul",
        kernel="dispatch_grouped_matmul",
        candidates={"own": dispatch_grouped_matmul, "mlx": grouped_matmul_mlx},
        fallback=grouped_matmul_simple,
        sample=lambda matmul: compute(matmul, dtype),
        expected=lambda: compute(grouped_matmul_simple, mx.float32),
        close=close_products(dtype),
        dtype=dtype,
    )
