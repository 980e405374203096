"""Paged attention on a GPU: choose the kernel for each query, and tell each group which queries it has."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, Ints
from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, GpuKernel
from kernel_runtime.launch import FLOATS, LANES, Launch, Target, default_target

from .gpu_operations import FEW_QUERIES, SOURCES
from .gpu_sizes import HEAD_DIMS, SIMD_GROUPS, TILE, TILE_ENTRIES
from .split_decode import num_splits, split_decode

Compute = Callable[[Target, Launch], mx.array]
"""Computes a launch, with one kernel or several."""


def make_paged_kernel(name: str, *places: str, **shared: str) -> GpuKernel:
    """Make a kernel for queries, keys and values in blocks, and `places`, which say where its queries are."""
    return GpuKernel(
        name,
        inputs=("query", "key", "value", "block_tables", *places),
        output="out",
        templates={"T": FLOATS, "D": HEAD_DIMS},
        folder=SOURCES,
        integers=("H_q", "H", "block_size", "longest"),
        reals=("scale",),
        shared=shared,
    )


PAGED_DECODE = make_paged_kernel(
    "paged_decode",
    "sequences",
    "num_keys",
    maxima=f"{SIMD_GROUPS}",
    totals=f"{SIMD_GROUPS}",
    partial_sums=f"{SIMD_GROUPS} * D",
)
PAGED_ATTENTION = make_paged_kernel(
    "paged_attention",
    "tiles",
    query_tile=f"{TILE_ENTRIES}",
    tile=f"{TILE_ENTRIES}",
    weight_tile=f"{TILE_ENTRIES}",
)


class Queries(NamedTuple):
    """Queries of a ragged batch that one kernel computes.

    Attributes:
        rows: [n], their rows in the batch.
        sequences: [n], the sequence of each.
        num_keys: [n], the number of keys that each sees.
    """

    rows: Ints
    sequences: Ints
    num_keys: Ints


class Share(NamedTuple):
    """The part of a step that one kernel computes. Made once for all layers.

    Attributes:
        compute: the kernel.
        rows: its rows of the batch; a slice needs no copy.
        places: the kernel's last inputs.
        num_groups: number of groups per head.
        num_splits: splits of the longest context, for `paged_decode`; else 1.
    """

    compute: Compute
    rows: mx.array | slice
    places: tuple[mx.array, ...]
    num_groups: int
    num_splits: int


def paged_attention_gpu(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    layout: BlockLayout,
    scale: float | None = None,
    target: Target | None = None,
    many: Compute = PAGED_ATTENTION,
    tile: int = TILE,
) -> mx.array:
    """Compute `paged_attention_simple` on a GPU. Sums are float32; the result has the type of the query.

    The kernels read wherever the arguments point, so these must have been checked. `paged_decode` computes
    sequences of at most FEW_QUERIES queries, or `split_decode` if one of them has a long context. `many`
    computes the others.

    Args:
        query, keys, values, layout, scale: as for `paged_attention_simple`; D is one of HEAD_DIMS, and query,
            keys and values have one type.
        target: where to run; by default, what this machine has.
        many: computes tiles of up to `tile` queries, from the launch of `paged_attention`.

    Raises:
        BuildError, NotImplementedError: the kernel is not available here, as for `GpuKernel`.
    """
    D = query.shape[-1]
    scale = D**-0.5 if scale is None else scale
    target = target or default_target()
    numbers = (tuple(np.array(x).tolist()) for x in (layout.query_start_loc, layout.seq_lens))
    shares, order = shares_of(*numbers, FEW_QUERIES, many, tile)
    tables = tables_on_gpu(layout.block_tables)
    outputs = []
    for share in shares:
        own = query[share.rows]
        launch = Launch(
            inputs=(own, keys, values, tables, *share.places),
            shape=own.shape,
            dtype=own.dtype,
            num_groups=(share.num_groups, own.shape[1], 1),
            num_threads=SIMD_GROUPS * LANES,
            template={"T": own.dtype, "D": D},
            integers=(own.shape[1], keys.shape[2], keys.shape[1], layout.block_tables.shape[1]),
            reals=(scale,),
        )
        if share.num_splits > 1:
            outputs.append(split_decode(target, launch, share.num_splits))
        else:
            outputs.append(share.compute(target, launch))
    return in_order(outputs, order)


@lru_cache(maxsize=4)
def shares_of(
    query_start_loc: tuple[int, ...],
    seq_lens: tuple[int, ...],
    few_queries: int,
    many: Compute,
    tile: int,
    few: Compute = PAGED_DECODE,
) -> tuple[list[Share], mx.array | None]:
    """Return each kernel's share of a step, and the order of their outputs; None if they are in order."""
    shares = []
    all_rows = split(np.array(query_start_loc, np.int32), np.array(seq_lens, np.int32), few_queries)
    for queries, is_few in zip(all_rows, (True, False), strict=True):
        if len(queries.rows):
            compute = few if is_few else many
            places = rows_of(queries) if is_few else tiles_of(queries, tile)
            splits = num_splits(int(queries.num_keys.max())) if is_few else 1
            shares.append(
                Share(compute, neighbours(queries.rows), tuple(map(on_gpu, places)), len(places[0]), splits)
            )
    order = np.argsort(np.concatenate([queries.rows for queries in all_rows]))
    return shares, None if (np.diff(order) == 1).all() else mx.array(order)


def neighbours(rows: Ints) -> mx.array | slice:
    """Return rows as an index of the batch: a slice if they are consecutive."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if (np.diff(rows) == 1).all() else mx.array(rows)


def on_gpu(places: Ints) -> mx.array:
    """Make an array of at least SMALLEST_BUFFER integers; padding it on the host needs no dispatch."""
    missing = SMALLEST_BUFFER - places.size
    return mx.array(np.pad(places.reshape(-1), (0, missing)) if missing > 0 else places)


def tables_on_gpu(block_tables: mx.array) -> mx.array:
    """Return block tables as the kernels read them: of int32, and at least SMALLEST_BUFFER entries."""
    tables = block_tables.astype(mx.int32)
    return tables if tables.size >= SMALLEST_BUFFER else on_gpu(np.array(tables).reshape(-1))


def in_order(outputs: list[mx.array], order: mx.array | None) -> mx.array:
    """Return the outputs of all shares as rows of the batch."""
    together = outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)
    return together if order is None else together[order]


def split(query_start_loc: Ints, seq_lens: Ints, few_queries: int) -> tuple[Queries, Queries]:
    """Separate the queries of sequences that have at most `few_queries` of them from all others."""
    num_queries = np.diff(query_start_loc)
    sequences = np.repeat(np.arange(len(num_queries), dtype=np.int32), num_queries)
    rows = np.arange(query_start_loc[-1], dtype=np.int32)
    num_keys = (seq_lens - query_start_loc[1:])[sequences] + rows + 1
    is_few = num_queries[sequences] <= few_queries
    few, many = (Queries(rows[own], sequences[own], num_keys[own]) for own in (is_few, ~is_few))
    return few, many


def rows_of(queries: Queries) -> tuple[Ints, Ints]:
    """Return the sequence of each query, and the number of keys it sees, [n] each."""
    return queries.sequences, queries.num_keys


def tiles_of(queries: Queries, tile: int) -> tuple[Ints]:
    """Return [number of tiles, 4]: sequence, first query, number of queries, and keys the first one sees."""
    is_first = np.diff(queries.sequences, prepend=-1) != 0
    starts = np.flatnonzero(is_first)
    lengths = np.diff(starts, append=len(queries.rows))
    tiles = [
        (queries.sequences[start], start + first, min(tile, length - first), queries.num_keys[start + first])
        for start, length in zip(starts, lengths, strict=True)
        for first in range(0, length, tile)
    ]
    return (np.array(tiles, dtype=np.int32),)
