"""The product with packed weights in whole numbers: given, not asked for on any day."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.ops.basics import Projection
from tiny_llm.ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights

INTEGER = CpuKernel(Path(__file__).parent / "integer_matmul.cpp")
INTEGER_BITS = (4, 8)
STRIP = 16
"""Columns whose words lie side by side, as the kernel has it."""
GRID_TYPES = {mx.float16: 1, mx.bfloat16: 2, mx.float32: 0}
"""Types of scales and biases, those of 16 bits first, and their numbers in the kernel."""


@dataclass(frozen=True, eq=False)
class ArrangedWeights:
    """Packed weights in the order in which the kernel reads them: one stream.

    Args:
        words: [out / 16 rounded up, groups, words of a group + 1 or 2, 16] uint32: for 16 columns side by
            side the words of a group, then its scales and its biases, in one word if 16 bits are enough
            for either. Columns that fill up the last strip are 0.
        numbers: what the kernel wants to know of them.
    """

    words: mx.array
    numbers: tuple[int, int, int]


_arranged: WeakKeyDictionary[QuantizedWeights, ArrangedWeights] = WeakKeyDictionary()


def integer_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """`quantized_matmul` with x rounded to 16 bits, twice as fast as floats where there are many rows.

    Each group of each row has a scale of its own: its largest entry becomes 32767. Products of integers are
    summed without any rounding, so that the error is about 2e-5 of the product's largest entry, and the
    same for few rows and for many. The kernel has 4 and 8 bits and runs on the CPU; all else is left to
    `quantized_matmul`. The weights are arranged at their first product and stay so for as long as they live.

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
    if weights not in _arranged:
        _arranged[weights] = arrange(weights)
    arranged = _arranged[weights]
    inputs, shape = (x.astype(mx.float32), arranged.words), (*x.shape[:-1], weights.shape[0])
    (product,) = INTEGER(inputs, [shape], [mx.float32], arranged.numbers)
    return product.astype(mx.result_type(x, weights.scales))


def arrange(weights: QuantizedWeights) -> ArrangedWeights:
    """Put packed weights in the order in which the kernel reads them; this waits until it is done."""
    num_outputs, num_groups = weights.scales.shape
    grids = mx.stack([weights.scales, weights.biases], axis=-1).astype(mx.float32)
    grid_type = next(each for each in GRID_TYPES if mx.array_equal(grids.astype(each), grids, equal_nan=True))
    grid_words = grids.astype(grid_type).view(mx.uint32)
    groups = mx.concatenate([weights.weight.reshape(num_outputs, num_groups, -1), grid_words], axis=-1)
    filled = mx.pad(groups, [(0, -num_outputs % STRIP), (0, 0), (0, 0)])
    words = mx.contiguous(filled.reshape(-1, STRIP, *groups.shape[1:]).transpose(0, 2, 3, 1))
    mx.eval(words)
    return ArrangedWeights(words, (weights.bits, weights.group_size, GRID_TYPES[grid_type]))


class IntegerProjection:
    """A QuantizedProjection by `integer_matmul` with short calls, of which a token takes many.

    It keeps the weights as they are until its first product, and from then on only as they are arranged.
    """

    def __init__(
        self,
        weights: QuantizedWeights,
        bias: mx.array | None = None,
        matmul: QuantizedMatmul = integer_matmul,
    ) -> None:
        self.weights, self.bias, self.matmul = weights, bias, matmul
        self._dtype = weights.scales.dtype
        self._num_outputs, self._num_inputs = weights.shape

    @cached_property
    def _arranged(self) -> ArrangedWeights:
        arranged = arrange(self.weights)
        del self.weights
        return arranged

    def __call__(self, x: mx.array) -> mx.array:
        """[..., `K`] -> [..., out], in the promoted type of x and scales; ValueError for any other `x`."""
        *leading, num_inputs = x.shape
        if num_inputs != self._num_inputs:
            raise ValueError(f"this projection needs x of [..., {self._num_inputs}], got {x.shape}")
        inputs, shape = (x.astype(mx.float32), self._arranged.words), (*leading, self._num_outputs)
        (product,) = INTEGER(inputs, [shape], [mx.float32], self._arranged.numbers)
        if x.dtype != mx.float32 or self._dtype != mx.float32:
            product = product.astype(mx.result_type(x, self._dtype))
        return product if self.bias is None else product + self.bias


def fast_projection(weights: QuantizedWeights, bias: mx.array | None, matmul: QuantizedMatmul) -> Projection:
    """An IntegerProjection if its kernel is what multiplies here, else a QuantizedProjection."""
    fits = mx.default_device() != mx.gpu and matmul is integer_matmul and weights.bits in INTEGER_BITS
    return (IntegerProjection if fits else QuantizedProjection)(weights, bias, matmul)
