"""Choose a kernel for the product with packed weights by device and number of rows."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import shaped

from ..ops.quantize import QuantizedWeights

SOURCES = Path(__file__).parent / "cpu"
SIMPLE = CpuKernel(SOURCES / "quantized_matmul_simple.cpp")
SIMD = CpuKernel(SOURCES / "quantized_matmul_simd.cpp")
DEQUANTIZE = CpuKernel(SOURCES / "dequantize.cpp")


def quantized_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Multiply by packed weights with the fastest kernel for this device and shape.

    For weights of 4 and 8 bits, use `quantized_matmul_gpu` (kernels/gpu_operations.py) if the default
    device is a GPU, and `quantized_matmul_cpu` otherwise. For all other widths, use `quantized_matmul_simple`
    (ops/quantize.py).

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: the last axis of `x` is not the number of inputs of `weights`; the message shows the
            shapes of `x` and `weights`.
    """
    raise NotImplementedError("week 2 day 3 task 6: quantized_matmul is not written yet")


def quantized_matmul_cpu(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Compute `quantized_matmul` on the CPU, for 4 and 8 bits, in float32.

    The number of rows is the product of all leading axes of x. For up to 64 rows, `multiply_simd` reads the
    packed weights. For more, `dequantize` expands the weights, and MLX's BLAS multiplies.
    """
    raise NotImplementedError("week 2 day 3 task 3: quantized_matmul_cpu is not written yet")


@shaped(x="[..., K] float32", weights="[N, K]")
def multiply_simple(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Multiply [..., in] float32 by packed weights with plain loops in C++: [..., out]."""
    return multiply(SIMPLE, x, weights)


@shaped(x="[..., K] float32", weights="[N, K]")
def multiply_simd(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Multiply [..., in] float32 by packed weights with vectors in C++: [..., out]."""
    return multiply(SIMD, x, weights)


def multiply(kernel: CpuKernel, x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Multiply [..., in] float32 by packed weights with a CPU kernel: [..., out]."""
    shape = (*x.shape[:-1], weights.shape[0])
    (product,) = kernel(
        [x, weights.weight, *_grids(weights)], [shape], [mx.float32], [weights.bits, weights.group_size]
    )
    return product


def dequantize(weights: QuantizedWeights) -> mx.array:
    """Expand the weights to [out, in] in float32, with the CPU kernel."""
    (plain,) = DEQUANTIZE(
        [weights.weight, *_grids(weights)], [weights.shape], [mx.float32], [weights.bits, weights.group_size]
    )
    return plain


def _grids(weights: QuantizedWeights) -> list[mx.array]:
    """Scales and biases in float32, the type that the CPU kernels read."""
    return [weights.scales.astype(mx.float32), weights.biases.astype(mx.float32)]
