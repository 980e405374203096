"""Quantized weights in MLX's affine layout: codes of a few bits, with a scale and a bias per group.

A weight is `scale x code + bias`. The codes are packed into uint32 words; the scales and biases are floats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from .basics import linear
from .packing import check_bits, pack, unpack

GROUP_SIZES = (32, 64, 128)
SMALLEST_STEP = 1e-7  # for a group whose weights are all equal


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
        check_layout(self.group_size, self.bits)
        if self.weight.dtype != mx.uint32 or self.weight.ndim != 2:
            raise ValueError(
                f"weight must be [out, words] of uint32, got {self.weight.dtype} {self.weight.shape}"
            )
        if self.scales.shape != self.biases.shape or self.scales.dtype != self.biases.dtype:
            raise ValueError(
                "scales and biases must have the same shape and type, "
                f"got {self.scales.dtype} {self.scales.shape} and {self.biases.dtype} {self.biases.shape}"
            )
        if not mx.issubdtype(self.scales.dtype, mx.floating):
            raise ValueError(f"scales and biases must be floats, got {self.scales.dtype}")
        num_outputs, num_inputs = self.shape
        if self.scales.shape != (num_outputs, num_inputs / self.group_size):
            raise ValueError(
                f"a weight {self.shape} with {self.bits} bits in groups of {self.group_size} needs scales of "
                f"[{num_outputs}, {num_inputs / self.group_size:g}], got {self.scales.shape}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in), the shape of the unpacked weight."""
        num_outputs, num_words = self.weight.shape
        return num_outputs, num_words * 32 // self.bits

    @property
    def num_bytes(self) -> int:
        """Bytes of the three arrays together. A product with all rows reads every one of them."""
        return self.weight.nbytes + self.scales.nbytes + self.biases.nbytes

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, including its share of the scale and the bias."""
        num_outputs, num_inputs = self.shape
        return 8 * self.num_bytes / (num_outputs * num_inputs)


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
    check_layout(group_size, bits)
    if w.ndim != 2 or w.shape[1] % group_size != 0:
        raise ValueError(f"w must be [out, in] with in a multiple of {group_size}, got {w.shape}")
    num_outputs, num_inputs = w.shape
    groups = w.astype(mx.float32).reshape(num_outputs, -1, group_size)
    scales, biases = _choose_grids(groups, bits)
    codes = mx.clip(mx.round((groups - biases) / scales), 0, 2**bits - 1).astype(mx.uint32)
    return QuantizedWeights(
        pack(codes.reshape(num_outputs, num_inputs), bits),
        scales.squeeze(-1).astype(w.dtype),
        biases.squeeze(-1).astype(w.dtype),
        group_size,
        bits,
    )


def dequantize_weights(weights: QuantizedWeights) -> mx.array:
    """Expand packed weights to [out, in]: scale x code + bias, computed and returned in the scales' type."""
    groups = unpack(weights.weight, weights.bits).reshape(*weights.scales.shape, weights.group_size)
    values = mx.expand_dims(weights.scales, -1) * groups + mx.expand_dims(weights.biases, -1)
    return values.reshape(weights.shape)


def _choose_grids(groups: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """Choose the scale and the bias, [..., 1] each, of every group [..., group_size]."""
    lowest, highest = mx.min(groups, axis=-1, keepdims=True), mx.max(groups, axis=-1, keepdims=True)
    is_lowest_further = mx.abs(lowest) > mx.abs(highest)
    edge = mx.where(is_lowest_further, lowest, highest)
    step = mx.maximum((highest - lowest) / (2**bits - 1), SMALLEST_STEP)
    scale = mx.where(is_lowest_further, step, -step)
    steps_to_zero = mx.round(edge / scale)
    is_zero = steps_to_zero == 0
    exact_scale = edge / mx.where(is_zero, 1, steps_to_zero)
    return mx.where(is_zero, scale, exact_scale), mx.where(is_zero, 0, edge)


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
    if x.shape[-1] != weights.shape[1]:
        raise ValueError(
            f"x must be [..., {weights.shape[1]}] for weights of shape {weights.shape}, got {x.shape}"
        )
    return linear(x, dequantize_weights(weights))


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
    product = matmul(x, weights)
    return product if bias is None else product + bias


@dataclass(frozen=True, eq=False)
class QuantizedProjection:
    """A projection of the model that holds its packed weights: `quantized_linear` as a callable."""

    weights: QuantizedWeights
    bias: mx.array | None = None
    matmul: QuantizedMatmul = quantized_matmul_simple

    def __call__(self, x: mx.array) -> mx.array:
        """[..., in] -> [..., out]"""
        return quantized_linear(x, self.weights, self.bias, self.matmul)
