"""The product with packed weights by kernels: which one, by device and by the number of rows."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel

from ..ops.quantize import QuantizedWeights

SOURCES = Path(__file__).parent / "cpu"
SIMPLE = CpuKernel(SOURCES / "quantized_matmul_simple.cpp")
SIMD = CpuKernel(SOURCES / "quantized_matmul_simd.cpp")
DEQUANTIZE = CpuKernel(SOURCES / "dequantize.cpp")


def quantized_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """The product with packed weights, by the fastest means there is for this device and shape.

    Kernels have 4 and 8 bits: `quantized_matmul_gpu` if the default device is a GPU, `quantized_matmul_cpu`
    if not. Other widths are left to `quantized_matmul_simple`.

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: `x` has another number of inputs than the `weights`.
    """
    raise NotImplementedError("week 2 day 3 task 6: quantized_matmul is not written yet")


def quantized_matmul_cpu(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """`quantized_matmul` on the CPU, for 4 and 8 bits; it computes in float32.

    Up to 64 rows, all leading axes counted, are multiplied with the packed weights as they are by
    `multiply_simd`. For more, the weights are expanded by `dequantize` and multiplied by MLX's BLAS.
    """
    raise NotImplementedError("week 2 day 3 task 3: quantized_matmul_cpu is not written yet")


def multiply_simple(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """[..., in] float32 times packed weights by plain loops in C++: [..., out]."""
    return multiply(SIMPLE, x, weights)


def multiply_simd(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """[..., in] float32 times packed weights by vectors in C++: [..., out]."""
    return multiply(SIMD, x, weights)


def multiply(kernel: CpuKernel, x: mx.array, weights: QuantizedWeights) -> mx.array:
    """[..., in] float32 times packed weights by a kernel: [..., out]."""
    shape = (*x.shape[:-1], weights.shape[0])
    (product,) = kernel(
        [x, weights.weight, *_grids(weights)], [shape], [mx.float32], [weights.bits, weights.group_size]
    )
    return product


def dequantize(weights: QuantizedWeights) -> mx.array:
    """The weights [out, in] in float32, by the CPU kernel."""
    (plain,) = DEQUANTIZE(
        [weights.weight, *_grids(weights)], [weights.shape], [mx.float32], [weights.bits, weights.group_size]
    )
    return plain


def _grids(weights: QuantizedWeights) -> list[mx.array]:
    """Scales and biases as the CPU kernels read them."""
    return [weights.scales.astype(mx.float32), weights.biases.astype(mx.float32)]
