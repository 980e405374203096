"""Quantized weights in MLX's affine layout: codes of a few bits, with a scale and a bias for each group.

A weight is `scale x code + bias`. The codes stay packed in uint32 words; the scales and biases are floats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from .packing import check_bits

GROUP_SIZES = (32, 64, 128)


def check_layout(group_size: int, bits: int) -> None:
    """ValueError unless MLX has groups of `group_size`, and codes of so many `bits`."""
    check_bits(bits)
    if group_size not in GROUP_SIZES:
        raise ValueError(f"groups have 32, 64 or 128 weights, not {group_size}")


# --- groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """The weight `[out, in]` of a projection or an embedding, packed.

    Each row is cut into groups of `group_size` neighbours, and each group has a scale and a bias.

    Args:
        weight: [out, in x bits / 32], uint32.
        scales, biases: [out, in / group_size], floats of one type.
        group_size: 32, 64 or 128.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Raises:
        ValueError: there is no such `group_size`, or width `bits`; the `weight` is not [out, words] of
            uint32; or `scales` and `biases` are not alike, no floats, or not one a group.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int = 64
    bits: int = 4

    def __post_init__(self) -> None:
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.__post_init__ is not written yet")

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in): the shape of the weight that is packed here."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.shape is not written yet")

    @property
    def num_bytes(self) -> int:
        """Bytes of all three parts: what a product with all rows must read."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.num_bytes is not written yet")

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight costs, its share of scale and bias included."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.bits_per_weight is not written yet")


def quantize_weights(w: mx.array, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """The nearest packed weights to w, with the grids that `mx.quantize` chooses.

    A group's grid has 2**bits values from its smallest weight to its largest. The one of these two that is
    further from zero becomes the bias, code 0, and stays exact; the scale leads from there to the other. The
    scale is then stretched or shrunk a little so that zero lies a whole number of steps from the bias: a
    weight of zero stays zero. Shrinking may cut the other end by up to a step. All of it is computed in
    float32, whatever the type of w.

    Args:
        w: [out, in], in a multiple of group_size.
        group_size: 32, 64 or 128.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        Packed weights whose scales and biases have the type of w.

    Raises:
        ValueError: there is no such `group_size`, or width `bits`; or `w` is not [out, in], with in a
            multiple of `group_size`.
    """
    raise NotImplementedError("week 2 day 2 task 2: quantize_weights is not written yet")


def dequantize_weights(weights: QuantizedWeights) -> mx.array:
    """The weights [out, in] that the codes stand for, scale x code + bias, in the type of the scales."""
    raise NotImplementedError("week 2 day 2 task 2: dequantize_weights is not written yet")


# --- the product -------------------------------------------------------------------------------------------

QuantizedMatmul = Callable[[mx.array, QuantizedWeights], mx.array]
"""x `[..., in]` times packed weights `[out, in]`, transposed: `[..., out]`. Later days bring faster ones."""


def quantized_matmul_simple(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """The product with packed weights by array operations: they are expanded for as long as it takes.

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: `x` has another number of inputs than the `weights`.
    """
    raise NotImplementedError("week 2 day 2 task 3: quantized_matmul_simple is not written yet")


def quantized_linear(
    x: mx.array,
    weights: QuantizedWeights,
    bias: mx.array | None = None,
    matmul: QuantizedMatmul = quantized_matmul_simple,
) -> mx.array:
    """`linear` with packed weights.

    Args:
        x: [..., in]
        weights: of shape (out, in).
        bias: [out], added to the product; not to be taken for the biases of the groups.
        matmul: the function that multiplies.

    Returns:
        [..., out], in the promoted type of the product and the bias.
    """
    raise NotImplementedError("week 2 day 2 task 3: quantized_linear is not written yet")


@dataclass(frozen=True, eq=False)
class QuantizedProjection:
    """A projection of the model with its packed weights in hand: `quantized_linear` as a callable."""

    weights: QuantizedWeights
    bias: mx.array | None = None
    matmul: QuantizedMatmul = quantized_matmul_simple

    def __call__(self, x: mx.array) -> mx.array:
        """[..., in] -> [..., out]"""
        return quantized_linear(x, self.weights, self.bias, self.matmul)
