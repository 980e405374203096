"""Packed weights in numpy and float64, bit by bit, and what known mistakes with them would give."""

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from tests.support.check import normal
from tests.support.oracles import Array, Mistakes, exact
from tiny_llm import QuantizedWeights

Codes = npt.NDArray[np.int64]
Grids = tuple[Codes, Array, Array]
"""Codes [out, groups, group_size], scales and biases [out, groups, 1]."""

BITS = (2, 3, 4, 5, 6, 8)
every_width = pytest.mark.parametrize("bits", BITS)
every_layout = pytest.mark.parametrize(
    ("bits", "group_size"), [(bits, group_size) for bits in BITS for group_size in (32, 64, 128)]
)


def random_words(*shape: int, seed: int) -> mx.array:
    """Words whose bits are all drawn."""
    low, high = mx.random.randint(0, 2**16, (2, *shape), mx.uint32, mx.random.key(seed))
    return low | high << 16


def bits_of(packed: mx.array) -> npt.NDArray[np.uint8]:
    """[..., words] -> [..., words x 32], the lowest bit of the first word first."""
    words = np.ascontiguousarray(np.array(packed).astype("<u4"))
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")


def codes_of(packed: mx.array, bits: int) -> Codes:
    """[..., words] -> [..., codes]: each code's bits, lowest first, follow those of the code before."""
    stream = bits_of(packed)
    digits = stream.reshape(*stream.shape[:-1], -1, bits).astype(np.int64)
    return digits @ (2 ** np.arange(bits))


def packed_by_mlx(
    num_outputs: int,
    num_inputs: int,
    group_size: int = 64,
    bits: int = 4,
    dtype: mx.Dtype = mx.float32,
    seed: int = 1,
) -> tuple[mx.array, mx.array, mx.array]:
    """Packed weight, scales and biases of normal-distributed weights, as MLX quantizes them."""
    w = normal(num_outputs, num_inputs, seed=seed, dtype=dtype)
    weight, scales, biases = mx.quantize(w, group_size=group_size, bits=bits)
    return weight, scales, biases


def grids_of(
    weight: mx.array, scales: mx.array, biases: mx.array, group_size: int = 64, bits: int = 4
) -> Grids:
    codes = codes_of(weight, bits)
    return (codes.reshape(codes.shape[0], -1, group_size), exact(scales)[..., None], exact(biases)[..., None])


def expanded(grids: Grids) -> Array:
    """[out, in] of scale x code + bias."""
    codes, scales, biases = grids
    return (scales * codes + biases).reshape(codes.shape[0], -1)


def expanded_by(weights: QuantizedWeights) -> Array:
    return expanded(
        grids_of(weights.weight, weights.scales, weights.biases, weights.group_size, weights.bits)
    )


# --- known mistakes ----------------------------------------------------------------------------------------


def unpacking_mistakes(packed: mx.array, bits: int) -> Mistakes:
    """Of codes [..., codes]."""
    codes = codes_of(packed, bits)
    rows = codes.shape[:-1]

    def in_words(first: int, step: int) -> Array:
        """Codes cut out of each word by itself, the unused bits passed over."""
        words = np.array(packed).astype(np.int64)
        starts = first + step * np.arange(32 // bits)
        found = (words[..., None] >> starts) & (2**bits - 1)
        flat = found.reshape(*rows, -1).astype(np.float64)
        return np.resize(flat, codes.shape) if flat.shape != codes.shape else flat

    def cut(crosses: bool, masks: bool) -> Array:
        words = np.pad(np.array(packed).astype(np.uint64), [(0, 0)] * len(rows) + [(0, 1)])
        word, shift = np.divmod(bits * np.arange(codes.shape[-1]), 32)
        found = words[..., word] >> shift.astype(np.uint64)
        if crosses:
            rest = words[..., word + 1] << (32 - shift).astype(np.uint64)
            found |= np.where(shift + bits > 32, rest, 0).astype(np.uint64)
        return (found & np.uint64(2 ** (bits if masks else 32) - 1)).astype(np.float64)

    mistakes: Mistakes = {
        "the codes with the bits above them: keep the lowest ones of each": partial(cut, True, False),
        "the codes without the bits that lie in the next word": partial(cut, False, True),
        "the codes as signed numbers: they count from 0 to 2**bits - 1": lambda: (
            codes - 2.0**bits * (codes >= 2 ** (bits - 1))
        ),
        "the codes with their bits in reverse: the lowest comes first": lambda: (
            bits_of(packed).reshape(*codes.shape, bits)[..., ::-1] @ 2.0 ** np.arange(bits)
        ),
    }
    if 32 % bits == 0:
        mistakes["the codes of each word in reverse: the first lies in the lowest bits"] = lambda: in_words(
            32 - bits, -bits
        )
    if bits == 4:
        mistakes["the codes with each pair of a byte swapped: the first lies in its lower half"] = lambda: (
            codes.reshape(*rows, -1, 2)[..., ::-1].reshape(codes.shape).astype(np.float64)
        )
    return mistakes


def expanding_mistakes(grids: Grids) -> dict[str, Callable[[], Array]]:
    """Of weights [out, in]."""
    codes, scales, biases = grids
    num_outputs, num_groups, group_size = codes.shape

    def grouped(order: Codes) -> Array:
        flat = codes.reshape(num_outputs, -1)
        return scales[:, order, 0] * flat + biases[:, order, 0]

    inputs = np.arange(num_groups * group_size)
    return {
        "the weights without the biases of the groups": lambda: expanded((codes, scales, 0 * biases)),
        "the weights with scale and bias swapped": lambda: expanded((codes, biases, scales)),
        "the weights with the bias subtracted": lambda: expanded((codes, scales, -biases)),
        "scale x (code + bias): the bias is added last": lambda: expanded((codes, scales, scales * biases)),
        "the weights with groups of every so many inputs, not of neighbours": lambda: grouped(
            inputs % num_groups
        ),
        "the weights with the scale and bias of the group after": lambda: grouped(
            (inputs // group_size + 1) % num_groups
        ),
        "the weights with the scale and bias of the group before": lambda: grouped(
            (inputs // group_size - 1) % num_groups
        ),
        "the weights with the scales of the first group for all": lambda: grouped(0 * inputs),
        "the weights with the scales of the first row for all": lambda: expanded(
            (codes, scales[:1] + 0 * scales, biases[:1] + 0 * biases)
        ),
        "the codes alone": lambda: codes.reshape(num_outputs, -1).astype(np.float64),
    }


def product_mistakes(x: Array, grids: Grids, bias: Array | float = 0.0) -> Mistakes:
    """Of a product [..., out]."""
    w = expanded(grids)
    codes, scales, biases = grids
    num_outputs, num_inputs = w.shape

    def with_weights(wrong: Callable[[], Array]) -> Array:
        return x @ wrong().T + bias

    def bias_once() -> Array:
        per_group = biases[..., 0].sum(axis=-1)
        return x @ expanded((codes, scales, 0 * biases)).T + per_group + bias

    return {
        "x @ w: the weight is not transposed": lambda: (
            x @ w + bias if num_outputs == num_inputs else np.nan * x
        ),
        "the product without the bias of the layer": lambda: x @ w.T,
        "the product minus the bias of the layer": lambda: x @ w.T - bias,
        "the product with the biases of the groups added once, not once for each input": bias_once,
        **{
            f"the product with {name}": partial(with_weights, wrong)
            for name, wrong in expanding_mistakes(grids).items()
        },
    }


def kernel_mistakes(x: Array, grids: Grids, bits: int) -> Mistakes:
    """Of a product [M, out] computed in C++: the order within a byte or a vector, and where sums end."""
    codes, scales, biases = grids
    w = expanded(grids)
    shape, group_size = (len(x), len(w)), codes.shape[-1]
    signed = codes - 2**bits * (codes >= 2 ** (bits - 1))
    is_upper = np.arange(group_size) % 2 == 1
    pairs = codes.reshape(-1, 2)
    uncut = pairs + 16 * pairs[:, ::-1] * [1, 0]

    def in_memory_order(lanes: int) -> Array:
        """x as it is meets weights 0, 2, 4 ... and then 1, 3, 5 ... of each block."""
        return x.reshape(len(x), -1, 2, lanes).swapaxes(2, 3).reshape(x.shape) @ w.T

    def in_order_of_pairs(lanes: int) -> Array:
        """x in the order 0, 2, 4 ..., 1, 3, 5 ... of each block meets the weights in their own."""
        return x.reshape(len(x), -1, lanes, 2).swapaxes(2, 3).reshape(x.shape) @ w.T

    def half_of_blocks(lanes: int, half: int) -> Array:
        inputs = np.arange(x.shape[1])
        kept = inputs % 2 if bits == 4 else inputs // lanes % 2
        return x * (kept == half) @ w.T

    of_pairs: Mistakes = {
        "the product with each pair of a byte swapped: the first weight lies in its lower half": lambda: (
            x @ expanded((pairs[:, ::-1].reshape(codes.shape), scales, biases)).T
        ),
        "the product with the upper half left in each lower one: cut it off": lambda: (
            x @ expanded((uncut.reshape(codes.shape), scales, biases)).T
        ),
        "the product with the upper half of each byte as a signed number": lambda: (
            x @ expanded((np.where(is_upper, signed, codes), scales, biases)).T
        ),
        **{
            "the product with x left in its own order, where unpacking yields the weights 0, 2, 4 ... of a "
            f"block and then 1, 3, 5 ...; with {lanes} lanes": partial(in_memory_order, lanes)
            for lanes in (4, 8, 16)
        },
    }
    of_bytes: Mistakes = {
        "the product with x arranged as for 4 bits, 0, 2, 4 ... and then 1, 3, 5 ... of each block, where "
        f"unpacking 8 bits yields the weights in their own order; with {lanes} lanes": partial(
            in_order_of_pairs, lanes
        )
        for lanes in (4, 8, 16)
    }
    return {
        **(of_pairs if bits == 4 else of_bytes),
        "the product with the codes as signed numbers": lambda: x @ expanded((signed, scales, biases)).T,
        "the product of the last group alone: the total is reset in each group": lambda: (
            x[:, -group_size:] @ w[:, -group_size:].T
        ),
        "the product without the last group": lambda: x[:, :-group_size] @ w[:, :-group_size].T,
        "the product with each row's total added to that of the row before: it begins at 0": lambda: (
            np.cumsum(x @ w.T, axis=0)
        ),
        "the product stored column by column: entry [m, n] belongs at m x N + n": lambda: (w @ x.T).reshape(
            shape
        ),
        "the product of x's first row in every row": lambda: np.broadcast_to(x[:1] @ w.T, shape),
        "the product with the first column of weights in every column": lambda: np.broadcast_to(
            x @ w[:1].T, shape
        ),
        **{
            f"the product of the {name} vector of each block alone, with {lanes} lanes": partial(
                half_of_blocks, lanes, half
            )
            for lanes in (4, 8, 16)
            for half, name in enumerate(("first", "second"))
        },
        **product_mistakes(x, grids),
    }
