"""The product with packed weights in whole numbers: given, not asked for on any day."""

import mlx.core as mx

from ..quantize import QuantizedWeights
from .cpu_kernel import CpuKernel
from .quantized_matmul import SOURCES, multiply, quantized_matmul

INTEGER = CpuKernel(SOURCES / "integer_matmul.cpp")
INTEGER_BITS = (4, 8)


def integer_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """`quantized_matmul` with x rounded to 16 bits, twice as fast as floats where there are many rows.

    Each group of each row has a scale of its own: its largest entry becomes 32767. Products of integers are
    summed without any rounding, so that the error is about 2e-5 of the product's largest entry, and the
    same for few rows and for many. The kernel has 4 and 8 bits and runs on the CPU; all else is left to
    `quantized_matmul`.

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the type that x and the scales have together.

    Raises:
        ValueError: x has another number of inputs.
    """
    fits = x.shape[-1] == weights.shape[1]
    if not fits or weights.bits not in INTEGER_BITS or mx.default_device() == mx.gpu:
        return quantized_matmul(x, weights)
    product = multiply(INTEGER, x.astype(mx.float32), weights)
    return product.astype(mx.result_type(x, weights.scales))
