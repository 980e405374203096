"""Quantized weights in MLX's affine layout: codes of a few bits, with a scale and a bias for each group.

A weight is `scale x code + bias`. The codes stay packed in uint32 words; the scales and biases are floats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from .basics import linear
from .packing import check_bits, pack, unpack

GROUP_SIZES = (32, 64, 128)
SMALLEST_STEP = 1e-7  # of a group whose weights are all alike


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
        check_layout(self.group_size, self.bits)
        if self.weight.dtype != mx.uint32 or self.weight.ndim != 2:
            raise ValueError(
                f"packed weights are [out, words] of uint32, got {self.weight.dtype} {self.weight.shape}"
            )
        if self.scales.shape != self.biases.shape or self.scales.dtype != self.biases.dtype:
            raise ValueError(
                "scales and biases must have one shape and one type, "
                f"got {self.scales.dtype} {self.scales.shape} and {self.biases.dtype} {self.biases.shape}"
            )
        if not mx.issubdtype(self.scales.dtype, mx.floating):
            raise ValueError(f"scales and biases must be floats, got {self.scales.dtype}")
        num_outputs, num_inputs = self.shape
        if self.scales.shape != (num_outputs, num_inputs / self.group_size):
            raise ValueError(
                f"a weight {self.shape} of {self.bits} bits in groups of {self.group_size} needs scales "
                f"[{num_outputs}, {num_inputs / self.group_size:g}], got {self.scales.shape}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in): the shape of the weight that is packed here."""
        num_outputs, num_words = self.weight.shape
        return num_outputs, num_words * 32 // self.bits

    @property
    def num_bytes(self) -> int:
        """Bytes of all three parts: what a product with all rows must read."""
        return self.weight.nbytes + self.scales.nbytes + self.biases.nbytes

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight costs, its share of scale and bias included."""
        num_outputs, num_inputs = self.shape
        return 8 * self.num_bytes / (num_outputs * num_inputs)


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
    check_layout(group_size, bits)
    if w.ndim != 2 or w.shape[1] % group_size != 0:
        raise ValueError(f"weights [out, in] with in a multiple of {group_size} are needed, got {w.shape}")
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
    """The weights [out, in] that the codes stand for, scale x code + bias, in the type of the scales."""
    groups = unpack(weights.weight, weights.bits).reshape(*weights.scales.shape, weights.group_size)
    values = mx.expand_dims(weights.scales, -1) * groups + mx.expand_dims(weights.biases, -1)
    return values.reshape(weights.shape)


def _choose_grids(groups: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """Scale and bias [..., 1] of each group [..., group_size]."""
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
    if x.shape[-1] != weights.shape[1]:
        raise ValueError(
            f"weights of shape {weights.shape} need x of [..., {weights.shape[1]}], got {x.shape}"
        )
    return linear(x, dequantize_weights(weights))


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
    product = matmul(x, weights)
    return product if bias is None else product + bias


@dataclass(frozen=True, eq=False)
class QuantizedProjection:
    """A projection of the model with its packed weights in hand: `quantized_linear` as a callable."""

    weights: QuantizedWeights
    bias: mx.array | None = None
    matmul: QuantizedMatmul = quantized_matmul_simple

    def __call__(self, x: mx.array) -> mx.array:
        """[..., in] -> [..., out]"""
        return quantized_linear(x, self.weights, self.bias, self.matmul)
