"""Quantized blocks and tails, made in numpy, and what attention to them should give.

Where nobody may look, floats are nan, and so are the scales and biases of quantized entries.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close
from tests.support.oracles import Array, Mistakes, exact, grouped_attention
from tests.support.ragged import Attend, Ragged, Shape, draw

Words = npt.NDArray[np.uint32]
GARBAGE = 0x7F707F70  # two float16 nan that become NOT_TO_BE_READ in float32


def group_size_of(D: int) -> int:
    return 32 if D % 64 else 64


def num_words_of(D: int, bits: int) -> int:
    """Words of a head: its codes, and one for the scale and bias of each group."""
    return D * bits // 32 + D // group_size_of(D)


def packed(codes: Array, scales: Array, biases: Array, bits: int) -> Words:
    """Codes [..., D], scales and biases [..., groups], as words."""
    digits = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 32 // bits)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    code_words = (digits << shifts).sum(axis=-1, dtype=np.uint32)
    low, high = (x.astype(np.float16).view(np.uint16).astype(np.uint32) for x in (scales, biases))
    return np.concatenate([code_words, low | high << 16], axis=-1).astype(np.uint32)


def unpacked(words: mx.array, D: int, bits: int) -> tuple[Array, Array, Array]:
    """Words as codes [..., D], scales and biases [..., groups]."""
    numbers = np.array(words).astype(np.uint32)
    num_code_words = D * bits // 32
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = numbers[..., :num_code_words, None] >> shifts & (2**bits - 1)
    halves = np.ascontiguousarray(numbers[..., num_code_words:]).astype("<u4").view("<f2")
    scales, biases = halves[..., 0::2].astype(np.float64), halves[..., 1::2].astype(np.float64)
    return codes.reshape(*numbers.shape[:-1], D).astype(np.float64), scales, biases


def expanded(codes: Array, scales: Array, biases: Array) -> Array:
    """Scale x code + bias, [..., D]."""
    groups = codes.reshape(*scales.shape, -1)
    return (groups * scales[..., None] + biases[..., None]).reshape(codes.shape)


def grids_of(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """Codes [..., D], scales and biases [..., groups] of heads [..., D]."""
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, group_size_of(x.shape[-1]))
    lowest, highest = groups.min(axis=-1), groups.max(axis=-1)
    scales = np.maximum((highest - lowest) / (2**bits - 1), 2.0**-14).astype(np.float16).astype(np.float64)
    biases = lowest.astype(np.float16).astype(np.float64)
    codes = np.clip(np.rint((groups - biases[..., None]) / scales[..., None]), 0, 2**bits - 1)
    return codes.reshape(x.shape), scales, biases


def quantized_by_hand(x: Array, bits: int) -> tuple[Words, Array]:
    """The words of heads [..., D], and the entries that they stand for."""
    grids = grids_of(x, bits)
    return packed(*grids, bits), expanded(*grids)


def of_first_group(codes: Array, scales: Array, biases: Array) -> Array:
    """Entries if a head has one scale and one bias."""
    return expanded(codes, *(np.repeat(x[..., :1], x.shape[-1], axis=-1) for x in (scales, biases)))


@dataclass(frozen=True)
class QuantizedRagged:
    """A ragged batch, and the arguments of attention to its keys and values in quantized blocks.

    Attributes:
        ragged: the same in floats.
        bits: of a key and of a value.
        arguments: as `quantized_paged_attention_simple` takes them.
        own_keys, own_values: of each sequence, [S, H, D], what a quantized block makes of them; those of its
            last block too if that is not full.
    """

    ragged: Ragged
    bits: tuple[int, int]
    arguments: tuple[mx.array, QuantizedBlocks, BlockLayout, mx.array]
    own_keys: list[Array]
    own_values: list[Array]

    def each(self, num_quantized: Callable[[int, int], int], scale: float | None, ends: bool = True) -> Array:
        """Attention [T, H_q, D] of each query by itself.

        Args:
            num_quantized: number of leading tokens that are read from quantized blocks, of a query that
                sees so many tokens of a sequence that has so many.
            scale: of the scores.
            ends: whether the tokens after them are seen.
        """
        query, row, rows = exact(self.ragged.query), 0, []
        shape = self.ragged.shape
        floats = zip(self.ragged.own_keys, self.ragged.own_values, strict=True)
        quantized = zip(self.own_keys, self.own_values, strict=True)
        for L, S, pair, other in zip(shape.num_queries, shape.contexts, floats, quantized, strict=True):
            for seen in range(S - L + 1, S + 1):
                first = min(num_quantized(seen, S), seen)
                last = seen if ends or not first else first
                key, value = (
                    np.concatenate([y[:first], x[first:last]]).swapaxes(0, 1)[None]
                    for x, y in zip(pair, other, strict=True)
                )
                rows.append(grouped_attention(query[row][None, :, None], key, value, scale)[0, :, 0])
                row += 1
        return np.stack(rows)

    def expanded_by(self, expand: Callable[[Array, Array, Array], Array], scale: float | None) -> Array:
        """Attention to what a function of codes, scales and biases makes of them."""
        size = self.ragged.shape.block_size
        keys, values = (
            [expand(*grids_of(x, bits)) for x in all_own]
            for all_own, bits in zip((self.ragged.own_keys, self.ragged.own_values), self.bits, strict=True)
        )
        other = replace(self, own_keys=keys, own_values=values)
        return other.each(lambda seen, S: seen // size * size, scale)

    def mistakes(self, scale: float | None) -> Mistakes:
        size = self.ragged.shape.block_size
        found: Mistakes = {
            "attention to entries whose scale and bias are swapped: the scale is in the lower half": lambda: (
                self.expanded_by(lambda codes, scales, biases: expanded(codes, biases, scales), scale)
            ),
            "attention to entries with the scale and bias of their head's first group": lambda: (
                self.expanded_by(of_first_group, scale)
            ),
            "attention to codes times scales, without the biases": lambda: self.expanded_by(
                lambda codes, scales, biases: expanded(codes, scales, 0 * biases), scale
            ),
            "attention in which a query that fills a block reads it in floats": lambda: self.each(
                lambda seen, S: (seen - 1) // size * size, scale
            ),
            "attention in which all queries read what is full at the end from quantized blocks": (
                lambda: self.each(lambda seen, S: S // size * size, scale)
            ),
            "attention to floats alone": lambda: self.each(lambda seen, S: 0, scale),
            "attention to quantized entries alone, those of the tail too": lambda: self.each(
                lambda seen, S: seen, scale
            ),
            "attention to full blocks alone, without the tail": lambda: self.each(
                lambda seen, S: seen // size * size, scale, ends=False
            ),
        }
        if scale == 0:
            name = "attention with the scale 1 / sqrt(D): 0 is a scale too, only None stands for the default"
            found = {name: lambda: self.each(lambda seen, S: seen // size * size, None), **found}
        return found


def draw_quantized(
    shape: Shape,
    dtype: mx.Dtype = mx.float32,
    bits: tuple[int, int] = (8, 4),
    size: float = 1.0,
    seed: int = 0,
    num_shared: int = 0,
    has_close_keys: bool = False,
) -> QuantizedRagged:
    """A batch whose blocks and tails are scattered; what no query reads is garbage.

    Args:
        shape, size, seed, num_shared, has_close_keys: as for `draw` of tests/support/ragged.py.
        dtype: of query and tails.
        bits: of keys and of values.
    """
    ragged = draw(shape, dtype, size, seed, num_shared, has_close_keys)
    block_size, tables = shape.block_size, np.array(ragged.layout.block_tables)
    tails, num_tails = tails_of(shape, np.random.default_rng(seed))
    pools, floats, own = [], [], []
    for all_own, width in zip((ragged.own_keys, ragged.own_values), bits, strict=True):
        words = np.full((*ragged.keys.shape[:3], num_words_of(shape.D, width)), GARBAGE, np.uint32)
        tail = np.full((num_tails, block_size, shape.H, shape.D), NOT_TO_BE_READ)
        quantized, row = list[Array](), 0
        for table, L, S, x in zip(tables, shape.num_queries, shape.contexts, all_own, strict=True):
            own_words, entries = quantized_by_hand(x, width)
            quantized.append(entries)
            for block in range(S // block_size):
                words[table[block]] = own_words[block * block_size : (block + 1) * block_size]
            for position in range(S - L, S):
                start = position // block_size * block_size
                if tails[row]:
                    end = min(start + block_size, S)  # a step stores all of its tokens in floats
                    tail[tails[row], : end - start] = x[start:end]
                row += 1
        pools.append(mx.array(words))
        floats.append(mx.array(tail).astype(dtype))
        own.append(quantized)
    arguments = ragged.query, QuantizedBlocks(*pools, *floats), ragged.layout, mx.array(tails)
    return QuantizedRagged(ragged, bits, arguments, *own)


def tails_of(shape: Shape, random: np.random.Generator) -> tuple[npt.NDArray[np.int32], int]:
    """The block of floats of each query, and how many there are; block 0, of nan, without a tail."""
    blocks: list[tuple[int, int] | None] = []
    for i, (L, S) in enumerate(zip(shape.num_queries, shape.contexts, strict=True)):
        for position in range(S - L, S):
            is_full = (position + 1) % shape.block_size == 0
            blocks.append(None if is_full else (i, position // shape.block_size))
    used = sorted({each for each in blocks if each is not None})
    numbers = dict(zip(used, (1 + random.permutation(len(used) + 1)).tolist(), strict=False))
    tails = [0 if each is None else numbers[each] for each in blocks]
    return np.array(tails, np.int32), len(used) + 2


def check_quantized(
    attend: Attend,
    batch: QuantizedRagged,
    what: str = "",
    tolerance: float = 1e-5,
    scale: float | None = None,
) -> None:
    """Compare attention to quantized blocks with that of each query to what it sees, in float64."""
    __tracebackhide__ = True
    block_size = batch.ragged.shape.block_size
    expected = batch.each(lambda seen, S: seen // block_size * block_size, scale)
    actual = attend(*batch.arguments, **({} if scale is None else {"scale": scale}))
    what = what or f"attention, {batch.ragged.shape}"
    check_close(actual, expected, what, tolerance, batch.mistakes(scale))


def in_chunks(attend: Attend, batch: QuantizedRagged, size: int, beside: bool) -> mx.array:
    """Attention of the first sequence's queries, so many at a time, alone or beside the others."""
    query, blocks, layout, tails = batch.arguments
    L, S = batch.ragged.shape.num_queries[0], batch.ragged.shape.contexts[0]
    parts = []
    for start in range(0, L, size):
        end = min(start + size, L)
        rows, own_tails = query[start:end], tails[start:end]
        own = BlockLayout(layout.block_tables[:1], mx.array([0, end - start]), mx.array([S - L + end]))
        if beside:
            rows, own_tails = (mx.concatenate([y, x[L:]]) for y, x in ((rows, query), (own_tails, tails)))
            starts = mx.concatenate([mx.array([0]), layout.query_start_loc[1:] - (L - (end - start))])
            lengths = mx.concatenate([own.seq_lens, layout.seq_lens[1:]])
            own = BlockLayout(layout.block_tables, starts, lengths)
        found = attend(rows, blocks, own, own_tails)
        parts.append(found[: end - start])
    return mx.concatenate(parts)
