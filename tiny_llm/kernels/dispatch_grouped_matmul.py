"""Choose a kernel for the products with the packed weights of many experts."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel

from ..ops.experts import ExpertWeights, shaped_by_expert

GROUPED_MATMUL = CpuKernel(Path(__file__).parent / "cpu" / "grouped_matmul.cpp")
GROUPED_BITS = (4, 8)


def dispatch_grouped_matmul(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
    """Compute `grouped_matmul_simple` with the fastest kernel for this device and width.

    If the default device is a GPU, use MLX's own kernel (`grouped_matmul_mlx`). On a CPU, use
    `grouped_matmul_cpu` for codes of `GROUPED_BITS` bits, and `grouped_matmul_simple` for all others.

    Args:
        x, experts, weights: as for `grouped_matmul_simple`.
    """
    raise NotImplementedError("week 4 day 2 task 5: dispatch_grouped_matmul is not written yet")


@shaped_by_expert
def grouped_matmul_cpu(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
    """Compute `grouped_matmul_simple` with the CPU kernel, for 4 and 8 bits, in float32.

    ValueError as for `grouped_matmul_simple`. The kernel reads wherever the values of `experts` point.
    """
    packed = weights.packed
    scales, biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    (product,) = GROUPED_MATMUL(
        [x.astype(mx.float32), experts.astype(mx.int32), packed.weight, scales, biases],
        [(x.shape[0], weights.shape[1])],
        [mx.float32],
        [packed.bits, packed.group_size],
    )
    return product.astype(mx.result_type(x, packed.scales))


@shaped_by_expert
def grouped_matmul_mlx(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
    """Compute `grouped_matmul_simple` with `mx.gather_qmm`, which has a kernel for every device.

    It takes x as [R, 1, in], and the packed weights, scales and biases as [X, out, ...]; `rhs_indices` is the
    number of a matrix for each row.

    Args:
        x, experts, weights: as for `grouped_matmul_simple`, with the same result.
    """
    raise NotImplementedError("week 4 day 2 task 5: grouped_matmul_mlx is not written yet")
