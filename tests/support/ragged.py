"""What the tests of day 3.3 share: ragged batches in blocks, with nan wherever nobody may look."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout
from tests.support.blocks import KINDS, LAYOUTS, Kind, Layout, scores_and_values
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close, normal
from tests.support.oracles import Array, Mistakes, causal_mask, exact, grouped_attention
from tiny_llm import ScheduledTokens, SchedulerOutput, Sequence

Attend = Callable[..., mx.array]


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch: queries and context of each sequence, heads, dimensions, tokens of a block."""

    num_queries: tuple[int, ...]
    contexts: tuple[int, ...]
    H_q: int = 4
    H: int = 2
    D: int = 32
    block_size: int = 5

    def __str__(self) -> str:
        pairs = " ".join(f"{L}of{S}" for L, S in zip(self.num_queries, self.contexts, strict=True))
        return f"{pairs} H_q={self.H_q} H={self.H} D={self.D} block_size={self.block_size}"


@dataclass(frozen=True)
class Ragged:
    """The arguments of paged attention, and keys and values of each sequence in one piece, [S, H, D]."""

    shape: Shape
    query: mx.array
    keys: mx.array
    values: mx.array
    layout: BlockLayout
    own_keys: list[Array]
    own_values: list[Array]

    @property
    def arguments(self) -> tuple[mx.array, mx.array, mx.array, BlockLayout]:
        """As `paged_attention_simple` takes them."""
        return self.query, self.keys, self.values, self.layout

    def each(self, attend: Callable[[Array, Array, Array], Array]) -> Array:
        """A function of query [1, H_q, L, D], key and value [1, H, S, D] of each sequence: [T, H_q, D]."""
        starts = np.cumsum([0, *self.shape.num_queries])
        rows = []
        for i, (key, value) in enumerate(zip(self.own_keys, self.own_values, strict=True)):
            query = exact(self.query)[starts[i] : starts[i + 1]]
            operands = [x.swapaxes(0, 1)[None] for x in (query, key, value)]
            rows.append(attend(operands[0], operands[1], operands[2])[0].swapaxes(0, 1))
        return np.concatenate(rows)


def draw(
    shape: Shape,
    dtype: mx.Dtype = mx.float32,
    size: float = 1.0,
    seed: int = 0,
    num_shared: int = 0,
    has_close_keys: bool = False,
) -> Ragged:
    """A batch whose blocks are scattered over a pool; slots and blocks that nobody owns hold nan.

    Entries of a block table behind its context name a block that nobody owns.

    Args:
        shape: of the batch.
        dtype: of query, keys and values.
        size: of the entries of the query.
        seed: of the numbers and of the order of the blocks.
        num_shared: so many first blocks are the same for all sequences.
        has_close_keys: whether a sequence's keys, and so its scores, differ by little.
    """
    random = np.random.default_rng(seed)
    counts = [-(-S // shape.block_size) for S in shape.contexts]
    num_blocks = sum(counts) + 3
    free = list(random.permutation(num_blocks))
    pools = [np.full((num_blocks, shape.block_size, shape.H, shape.D), NOT_TO_BE_READ) for _ in "kv"]
    tables = np.full((len(counts), max(counts) + 2), free.pop(), np.int32)
    own: tuple[list[Array], list[Array]] = ([], [])
    for i, (S, count) in enumerate(zip(shape.contexts, counts, strict=True)):
        tables[i, :count] = [free.pop() for _ in range(count)]
        tables[i, :num_shared] = tables[0, :num_shared]
        for pool, all_own, number in zip(pools, own, (1, 2), strict=True):
            numbers = normal(S, shape.H, shape.D, seed=1000 * seed + 10 * i + number)
            if has_close_keys and pool is pools[0]:
                numbers = numbers[:1] + 0.1 * numbers
            entries = exact(numbers.astype(dtype)).astype(np.float32)
            if i > 0:
                entries[: num_shared * shape.block_size] = all_own[0][: num_shared * shape.block_size]
            for j in range(S):
                pool[tables[i, j // shape.block_size], j % shape.block_size] = entries[j]
            all_own.append(entries.astype(np.float64))
    T = sum(shape.num_queries)
    return Ragged(
        shape,
        (normal(T, shape.H_q, shape.D, seed=seed + 5) * size).astype(dtype),
        *(mx.array(pool).astype(dtype) for pool in pools),
        BlockLayout(
            mx.array(tables),
            mx.array(np.cumsum([0, *shape.num_queries], dtype=np.int32)),
            mx.array(np.array(shape.contexts, np.int32)),
        ),
        *own,
    )


def check_paged(
    attend: Attend,
    ragged: Ragged,
    what: str = "",
    tolerance: float = 1e-5,
    scale: float | None = None,
    **options: Any,
) -> None:
    """Compare attention to blocks with that of each sequence to its own keys, in numpy and float64."""
    __tracebackhide__ = True
    expected = ragged.each(lambda q, k, v: causal(q, k, v, scale))
    actual = attend(*ragged.arguments, **({} if scale is None else {"scale": scale}), **options)
    what = what or f"attention, {ragged.shape}"
    check_close(actual, expected, what, tolerance, mistakes(ragged, scale))


def causal(query: Array, key: Array, value: Array, scale: float | None) -> Array:
    return grouped_attention(query, key, value, scale, causal_mask(query.shape[2], key.shape[2]))


def mistakes(ragged: Ragged, scale: float | None) -> Mistakes:
    """Known mistakes with the tables, the positions and the heads."""

    def from_the_start(query: Array, key: Array, value: Array) -> Array:
        L = query.shape[2]
        return grouped_attention(query, key[:, :, :L], value[:, :, :L], scale, causal_mask(L, L))

    def without_mask(query: Array, key: Array, value: Array) -> Array:
        return grouped_attention(query, key, value, scale)

    def tiled(query: Array, key: Array, value: Array) -> Array:
        group_size = query.shape[1] // key.shape[1]
        return causal(query, *(np.tile(x, (1, group_size, 1, 1)) for x in (key, value)), scale)

    def without_the_newest(query: Array, key: Array, value: Array) -> Array:
        L, S = query.shape[2], key.shape[2]
        mask = causal_mask(L, S - 1) if S > L else causal_mask(L, S)[:, :-1]
        return grouped_attention(query, key[:, :, :-1], value[:, :, :-1], scale, mask)

    kinds = {
        "attention of queries that stand at the first positions": from_the_start,
        "attention without the causal mask": without_mask,
        "attention with the key heads tiled (0 1 0 1), not repeated (0 0 1 1)": tiled,
        "attention without the newest key": without_the_newest,
    }

    def in_blocks(query: Array, key: Array, value: Array, kind: Kind, layout: Layout) -> Array:
        mask = causal_mask(query.shape[2], key.shape[2])
        return kind(*scores_and_values(query, key, value, scale, mask), layout)

    found: Mistakes = {
        **{name: partial(ragged.each, kind) for name, kind in kinds.items()},
        **{
            f"attention {name}": tuple(
                partial(ragged.each, partial(in_blocks, kind=kind, layout=layout)) for layout in LAYOUTS
            )
            for name, kind in KINDS.items()
        },
    }
    if scale == 0:
        name = "attention with the scale 1 / sqrt(D): 0 is a scale as well, only None stands for the default"
        found = {name: lambda: ragged.each(partial(causal, scale=None)), **found}
    if len(ragged.own_keys) > 1:
        other = replace(ragged, own_keys=ragged.own_keys[:1] * len(ragged.own_keys))
        found["attention to the first sequence's keys"] = lambda: other.each(from_the_start)
        first = np.concatenate([exact(ragged.query)[:L] for L in ragged.shape.num_queries])
        same = replace(ragged, query=mx.array(first.astype(np.float32)))
        found["attention with the first rows of the batch as the queries of every sequence"] = lambda: (
            same.each(partial(causal, scale=scale))
        )
    return found


def entries_of(*parts: tuple[Sequence, int]) -> tuple[ScheduledTokens, ...]:
    """The next so many tokens of each sequence, as the scheduler says them."""
    return tuple(
        ScheduledTokens(
            sequence,
            sequence.num_computed_tokens,
            num_tokens,
            sequence.num_computed_tokens + num_tokens == sequence.num_tokens,
        )
        for sequence, num_tokens in parts
    )


def output_of(*parts: tuple[Sequence, int]) -> SchedulerOutput:
    return SchedulerOutput(entries_of(*parts))


def random_shape(random: np.random.Generator, dims: Items[int], longest: int = 50) -> Shape:
    """Up to five sequences: chunks, decodes and whole prompts in any order."""
    num_queries, contexts = [], []
    for _ in range(int(random.integers(1, 6))):
        L = 1 if random.integers(2) else int(random.integers(1, longest))
        num_queries.append(L)
        contexts.append(L + int(random.integers(0, 2)) * int(random.integers(0, 2 * longest)))
    H = int(random.integers(1, 4))
    heads = H * int(random.integers(1, 4)), H
    sizes = int(random.choice(dims)), int(random.integers(1, 20))
    return Shape(tuple(num_queries), tuple(contexts), *heads, *sizes)
