"""Quantized weights in MLX's affine layout: codes of a few bits, with a scale and a bias per group.

A weight is `scale x code + bias`. The codes are packed into uint32 words; the scales and biases are floats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from .packing import check_bits

GROUP_SIZES = (32, 64, 128)


def check_layout(group_size: int, bits: int) -> None:
    """Raise ValueError unless MLX supports this `group_size` and this many `bits`."""
    check_bits(bits)
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size must be 32, 64 or 128, got {group_size}")


# --- groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """The packed weight `[out, in]` of a projection or an embedding.

    Each row is cut into groups of `group_size` neighboring weights. Each group has a scale and a bias.

    Args:
        weight: [out, in x bits / 32], uint32.
        scales, biases: [out, in / group_size], floats of the same type.
        group_size: 32, 64 or 128.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Raises:
        ValueError: `group_size` or `bits` is not one of these values; the shape of `weight` is not
            [out, words], or its type is not uint32; `scales` and `biases` differ in shape or type, are
            not floats, or are not one per group.
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
        """(out, in), the shape of the unpacked weight."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.shape is not written yet")

    @property
    def num_bytes(self) -> int:
        """Bytes of the three arrays together. A product with all rows reads every one of them."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.num_bytes is not written yet")

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, including its share of the scale and the bias."""
        raise NotImplementedError("week 2 day 2 task 2: QuantizedWeights.bits_per_weight is not written yet")


def quantize_weights(w: mx.array, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """Quantize w by rounding each weight to its group's grid, which is the one `mx.quantize` chooses.

    A grid has 2**bits values, from the group's smallest weight to its largest. Whichever of the two is
    further from zero (the largest if they are equally far) becomes the bias, so code 0 reproduces it exactly.
    The scale is the step from the bias toward the other one: positive if the bias is the smallest weight,
    negative otherwise, and at least 1e-7 in size.

    Then divide the bias by the scale and round: this is how many steps zero is away from the bias. Change
    the scale so that this number of steps leads exactly to zero, and a weight of zero stays zero. A smaller
    scale may cut off the far end by up to a step. Compute in float32, whatever the type of w.

    If the rounded number of steps is 0, leave the scale as it is and set the bias to 0.

    Args:
        w: [out, in], where in is a multiple of group_size.
        group_size: 32, 64 or 128.
        bits: width of a code: 2, 3, 4, 5, 6 or 8.

    Returns:
        Packed weights whose scales and biases have the type of w.

    Raises:
        ValueError: `group_size` or `bits` is not one of these values; or the shape of `w` is not [out, in]
            with in a multiple of `group_size`.
    """
    raise NotImplementedError("week 2 day 2 task 2: quantize_weights is not written yet")


def dequantize_weights(weights: QuantizedWeights) -> mx.array:
    """Expand packed weights to [out, in]: scale x code + bias, computed and returned in the scales' type."""
    raise NotImplementedError("week 2 day 2 task 2: dequantize_weights is not written yet")


# --- the product -------------------------------------------------------------------------------------------

QuantizedMatmul = Callable[[mx.array, QuantizedWeights], mx.array]
"""Multiplies x `[..., in]` by packed weights `[out, in]` to give `[..., out]`. Later days add faster ones."""


def quantized_matmul_simple(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """Multiply by packed weights with array operations: expand the weights, then use `linear`.

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: the last axis of `x` is not the number of inputs of `weights`; the message shows the
            shapes of `x` and `weights`.
    """
    raise NotImplementedError("week 2 day 2 task 3: quantized_matmul_simple is not written yet")


def quantized_linear(
    x: mx.array,
    weights: QuantizedWeights,
    bias: mx.array | None = None,
    matmul: QuantizedMatmul = quantized_matmul_simple,
) -> mx.array:
    """Do what `linear` does, with packed weights.

    Args:
        x: [..., in]
        weights: of shape (out, in).
        bias: [out], added to the product. Don't confuse it with the biases of the groups.
        matmul: computes the product.

    Returns:
        [..., out], in the promoted type of the product and the bias.
    """
    raise NotImplementedError("week 2 day 2 task 3: quantized_linear is not written yet")


@dataclass(frozen=True, eq=False)
class QuantizedProjection:
    """A projection of the model that holds its packed weights: `quantized_linear` as a callable."""

    weights: QuantizedWeights
    bias: mx.array | None = None
    matmul: QuantizedMatmul = quantized_matmul_simple

    def __call__(self, x: mx.array) -> mx.array:
        """[..., in] -> [..., out]"""
        return quantized_linear(x, self.weights, self.bias, self.matmul)
