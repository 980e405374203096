"""The fastest product with the weights of many experts that works on this machine."""

from functools import cache

import mlx.core as mx

from kernel_runtime.native import kernels_mode
from kernel_runtime.self_check import close_products, judge, sample

from ..kernels.dispatch_grouped_matmul import dispatch_grouped_matmul
from ..ops.experts import ExpertWeights, GroupedMatmul, grouped_matmul_simple
from .race_inputs import as_quantized, packed_in, usual_dtype

MANY_ROWS = 40
"""MLX has a kernel of its own for at least 16 sorted rows on a Mac's GPU."""


def best_grouped_matmul(dtype: mx.Dtype | None = None) -> GroupedMatmul:
    """Use `dispatch_grouped_matmul` if it is right here, and `grouped_matmul_simple` otherwise.

    Args:
        dtype: as for `best_operations`.
    """
    return _grouped_matmul(dtype or usual_dtype(), str(mx.default_device()), kernels_mode())


@cache
def _grouped_matmul(dtype: mx.Dtype, device: str, mode: str) -> GroupedMatmul:
    if mode == "off":
        return grouped_matmul_simple
    packed, x = packed_in(dtype, sample(5 * 7, 64)), sample(MANY_ROWS, 64).astype(dtype)
    few, many = mx.array([0, 2, 2]), mx.array([0] * 24 + [2] * 4 + [4] * 12)

    def multiply(matmul: GroupedMatmul, dtype: mx.Dtype) -> mx.array:
        codes, scales, biases = packed
        kind = as_quantized((codes, scales.astype(dtype), biases.astype(dtype)))
        weights = ExpertWeights(kind.weights, 5)
        return mx.concatenate([matmul(x[: each.size].astype(dtype), each, weights) for each in (few, many)])

    verdict = judge(
        "dispatch_grouped_matmul",
        lambda: multiply(dispatch_grouped_matmul, dtype),
        lambda: multiply(grouped_matmul_simple, mx.float32),
        close_products(dtype),
    )
    return dispatch_grouped_matmul if verdict == "right" else grouped_matmul_simple
