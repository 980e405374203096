"""Choose a kernel for attention to quantized blocks by device and type."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.paged_check import checked_quantized, unchecked

from ..ops.quantized_blocks import bits_of
from ..ops.quantized_paged_attention import quantized_paged_attention_simple
from .quantized_paged_gpu import HEAD_DIMS, quantized_paged_attention_gpu

QUANTIZED_PAGED_ATTENTION = CpuKernel(Path(__file__).parent / "cpu" / "quantized_paged_attention.cpp")
TAIL_TYPES = (mx.float32, mx.bfloat16, mx.float16)
"""Types of tails. The CPU kernel gets the index of a type in this list."""


@checked_quantized
def dispatch_quantized_attention(
    query: mx.array,
    blocks: QuantizedBlocks,
    layout: BlockLayout,
    tails: mx.array,
    scale: float | None = None,
) -> mx.array:
    """Compute `quantized_paged_attention_simple` with the fastest kernel for this device and type.

    On a GPU (the default device), use `quantized_paged_attention_gpu` if D is one of HEAD_DIMS and the query
    and both tails have the same type. On a CPU, use `quantized_paged_attention_cpu` if both tails have the
    same type, one of TAIL_TYPES. In all other cases, use `quantized_paged_attention_simple`.

    Arguments, result and ValueError are those of `quantized_paged_attention_simple`.
    """
    keys, values, tail_keys, tail_values = blocks
    D = query.shape[-1]
    scale = D**-0.5 if scale is None else scale
    bits_of(keys.shape[-1], D), bits_of(values.shape[-1], D)  # the kernels trust them
    if mx.default_device() == mx.gpu:
        if D in HEAD_DIMS and query.dtype == tail_keys.dtype == tail_values.dtype:
            return quantized_paged_attention_gpu(query, blocks, layout, tails, scale)
    elif tail_keys.dtype == tail_values.dtype in TAIL_TYPES:
        return quantized_paged_attention_cpu(query, blocks, layout, tails, scale)
    return unchecked(quantized_paged_attention_simple)(query, blocks, layout, tails, scale)


def quantized_paged_attention_cpu(
    query: mx.array,
    blocks: QuantizedBlocks,
    layout: BlockLayout,
    tails: mx.array,
    scale: float,
) -> mx.array:
    """Attention to quantized blocks with the CPU kernel. The tails have one type, one of TAIL_TYPES.

    The kernel sums in float32. It reads wherever the arguments point, so they must have been checked.
    """
    places = layout.block_tables, tails, layout.query_start_loc, layout.seq_lens
    inputs = [query.astype(mx.float32), *blocks, *(x.astype(mx.int32) for x in places)]
    numbers = [scale, TAIL_TYPES.index(blocks.tail_keys.dtype)]
    (output,) = QUANTIZED_PAGED_ATTENTION(inputs, [query.shape], [mx.float32], numbers)
    return output.astype(query.dtype)
