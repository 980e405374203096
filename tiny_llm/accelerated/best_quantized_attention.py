"""The fastest attention to quantized blocks that works on this machine."""

from functools import cache

import mlx.core as mx

from kernel_runtime.native import kernels_mode
from kernel_runtime.paged_check import QuantizedPagedAttention
from kernel_runtime.self_check import close_in, judge, sample

from ..kernels.dispatch_quantized_attention import dispatch_quantized_attention
from ..ops.quantized_blocks import quantize_heads
from ..ops.quantized_paged_attention import quantized_paged_attention_simple
from .race_inputs import usual_dtype


def best_quantized_attention(dtype: mx.Dtype | None = None) -> QuantizedPagedAttention:
    """Use the kernel for this device if it is right, and `quantized_paged_attention_simple` otherwise.

    Args:
        dtype: as for `best_operations`.
    """
    return _attention(dtype or usual_dtype(), str(mx.default_device()), kernels_mode())


@cache
def _attention(dtype: mx.Dtype, device: str, mode: str) -> QuantizedPagedAttention:
    if mode in ("mlx", "off"):
        return quantized_paged_attention_simple
    query, tail_keys = sample(12, 6, 64).astype(dtype), sample(4, 4, 2, 64).astype(dtype)
    tail_values = tail_keys + 1
    keys, values = quantize_heads(tail_keys, 8), quantize_heads(tail_values, 4)
    tables, tails = mx.array([[3, 1, 2], [0, 2, 1]]), mx.array([*[1] * 3, *[2] * 4, *[0] * 4, 3])
    starts, lengths = mx.array([0, 11, 12]), mx.array([12, 3])

    def attend(attention: QuantizedPagedAttention, dtype: mx.Dtype) -> mx.array:
        floats = tail_keys.astype(dtype), tail_values.astype(dtype)
        return attention(query.astype(dtype), keys, values, *floats, tables, tails, starts, lengths)

    verdict = judge(
        "dispatch_quantized_attention",
        lambda: attend(dispatch_quantized_attention, dtype),
        lambda: attend(quantized_paged_attention_simple, mx.float32),
        close_in(dtype),
    )
    return dispatch_quantized_attention if verdict == "right" else quantized_paged_attention_simple
