"""The fastest product with the weights of many experts that works on this machine."""

from functools import cache

import mlx.core as mx

from kernel_runtime.native import kernels_mode
from kernel_runtime.self_check import close_products, judge, sample

from ..kernels.dispatch_grouped_matmul import dispatch_grouped_matmul
from ..ops.experts import ExpertWeights, GroupedMatmul, grouped_matmul_simple
from .race_inputs import as_quantized


def best_grouped_matmul() -> GroupedMatmul:
    """Use `dispatch_grouped_matmul` if it is right here, and `grouped_matmul_simple` otherwise."""
    return _grouped_matmul(str(mx.default_device()), kernels_mode())


@cache
def _grouped_matmul(device: str, mode: str) -> GroupedMatmul:
    if mode == "off":
        return grouped_matmul_simple
    weights = ExpertWeights(as_quantized(mx.quantize(sample(5 * 7, 64))).weights, 5)
    x, experts = sample(13, 64), mx.array([0] * 9 + [2, 4, 4, 4])
    verdict = judge(
        "dispatch_grouped_matmul",
        lambda: dispatch_grouped_matmul(x, experts, weights),
        lambda: grouped_matmul_simple(x, experts, weights),
        close_products(),
    )
    return dispatch_grouped_matmul if verdict == "right" else grouped_matmul_simple
