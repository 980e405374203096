"""The product with packed weights in whole numbers: given, not asked for on any day."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel

from ...ops.quantize import QuantizedProjection, QuantizedWeights
from ..quantized_matmul import multiply, quantized_matmul

INTEGER = CpuKernel(Path(__file__).parent / "integer_matmul.cpp")
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
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: `x` has another number of inputs.
    """
    fits = x.shape[-1] == weights.shape[1]
    if not fits or weights.bits not in INTEGER_BITS or mx.default_device() == mx.gpu:
        return quantized_matmul(x, weights)
    product = multiply(INTEGER, x.astype(mx.float32), weights)
    return product.astype(mx.result_type(x, weights.scales))


class IntegerProjection:
    """A projection by `integer_matmul`, made ready once: its calls, of which a token takes many, are short.

    Args:
        projection: one that `fits`.
    """

    def __init__(self, projection: QuantizedProjection) -> None:
        weights = projection.weights
        self._bias = projection.bias
        self._dtype = weights.scales.dtype
        self._num_outputs, self._num_inputs = weights.shape
        self._arrays = (
            weights.weight,
            weights.scales.astype(mx.float32),
            weights.biases.astype(mx.float32),
        )
        self._numbers = (weights.bits, weights.group_size)
        mx.eval(self._arrays)

    @staticmethod
    def fits(projection: QuantizedProjection) -> bool:
        """Whether the kernel is what multiplies there."""
        is_on_cpu = mx.default_device() != mx.gpu
        return is_on_cpu and projection.matmul is integer_matmul and projection.weights.bits in INTEGER_BITS

    def __call__(self, x: mx.array) -> mx.array:
        """[..., `K`] -> [..., out], in the promoted type of x and scales; ValueError for any other `x`."""
        *leading, num_inputs = x.shape
        if num_inputs != self._num_inputs:
            raise ValueError(f"this projection needs x of [..., {self._num_inputs}], got {x.shape}")
        inputs, shape = (x.astype(mx.float32), *self._arrays), (*leading, self._num_outputs)
        (product,) = INTEGER(inputs, [shape], [mx.float32], self._numbers)
        if x.dtype != mx.float32 or self._dtype != mx.float32:
            product = product.astype(mx.result_type(x, self._dtype))
        return product if self._bias is None else product + self._bias
