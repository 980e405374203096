"""Attention to keys and values in blocks on a GPU: which kernel, and which group has which queries."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import FLOATS, LANES, Launch, Target, default_target

from .gpu_operations import FEW_QUERIES, HEAD_DIMS, SIMD_GROUPS, SOURCES, TILE, TILE_ENTRIES

Ints = npt.NDArray[np.int32]


def make_paged_kernel(name: str, *places: str, **shared: str) -> GpuKernel:
    """A kernel of queries, of keys and values in blocks, and of where each group's queries are."""
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
        rows: [n], which rows of the batch they are.
        sequences: [n], whose they are.
        num_keys: [n], how many keys each sees.
    """

    rows: Ints
    sequences: Ints
    num_keys: Ints


def paged_attention_gpu(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    block_tables: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
    scale: float | None = None,
    target: Target | None = None,
) -> mx.array:
    """`paged_attention_simple` on a GPU; sums are float32, and the result is in the type of the query.

    The kernels read where the arguments lead them: they were checked.
    Sequences of at most FEW_QUERIES queries are computed by `paged_decode`, the others by `paged_attention`.

    Args:
        query, keys, values, block_tables, query_starts, context_lengths, scale: as for
            `paged_attention_simple`; D is one of HEAD_DIMS, and query, keys and values have one type.
        target: where to run; what this machine has unless given.

    Raises:
        BuildError, NotImplementedError: there is no such kernel here, as for `GpuKernel`.
    """
    D = query.shape[-1]
    scale = D**-0.5 if scale is None else scale
    target = target or default_target()
    blocks = keys, values, block_tables.astype(mx.int32)
    few, many = split(np.array(query_starts), np.array(context_lengths))
    outputs, rows = [], []
    for queries, launch, kernel in (
        (few, launch_decode, PAGED_DECODE),
        (many, launch_tiles, PAGED_ATTENTION),
    ):
        if len(queries.rows):
            own = query[mx.array(queries.rows)] if len(queries.rows) < query.shape[0] else query
            outputs.append(kernel(target, launch(queries, own, *blocks, scale)))
            rows.append(queries.rows)
    if len(outputs) == 1:
        return outputs[0]
    return mx.concatenate(outputs)[mx.array(np.argsort(np.concatenate(rows)))]


def split(query_starts: Ints, context_lengths: Ints) -> tuple[Queries, Queries]:
    """The queries of sequences with at most FEW_QUERIES of them, and all others."""
    num_queries = np.diff(query_starts)
    sequences = np.repeat(np.arange(len(num_queries), dtype=np.int32), num_queries)
    rows = np.arange(query_starts[-1], dtype=np.int32)
    num_keys = (context_lengths - query_starts[1:])[sequences] + rows + 1
    is_few = num_queries[sequences] <= FEW_QUERIES
    few, many = (Queries(rows[own], sequences[own], num_keys[own]) for own in (is_few, ~is_few))
    return few, many


def launch_decode(
    queries: Queries, query: mx.array, keys: mx.array, values: mx.array, block_tables: mx.array, scale: float
) -> Launch:
    """A group for each query and head."""
    places = mx.array(queries.sequences), mx.array(queries.num_keys.astype(np.int32))
    return paged_launch((query, keys, values, block_tables, *places), len(queries.rows), scale)


def launch_tiles(
    queries: Queries, query: mx.array, keys: mx.array, values: mx.array, block_tables: mx.array, scale: float
) -> Launch:
    """A group for each head and up to TILE neighbouring queries of one sequence."""
    places = mx.array(tiles_of(queries))
    return paged_launch((query, keys, values, block_tables, places), places.shape[0], scale)


def tiles_of(queries: Queries) -> Ints:
    """[number of tiles, 4]: sequence, first of its queries, how many, and how many keys that one sees."""
    is_first = np.diff(queries.sequences, prepend=-1) != 0
    starts = np.flatnonzero(is_first)
    lengths = np.diff(starts, append=len(queries.rows))
    tiles = [
        (queries.sequences[start], start + first, min(TILE, length - first), queries.num_keys[start + first])
        for start, length in zip(starts, lengths, strict=True)
        for first in range(0, length, TILE)
    ]
    return np.array(tiles, dtype=np.int32)


def paged_launch(inputs: tuple[mx.array, ...], num_groups: int, scale: float) -> Launch:
    """A launch with so many groups a head."""
    query, keys, _, block_tables = inputs[:4]
    _, H_q, D = query.shape
    return Launch(
        inputs=inputs,
        shape=query.shape,
        dtype=query.dtype,
        num_groups=(num_groups, H_q, 1),
        num_threads=SIMD_GROUPS * LANES,
        template={"T": query.dtype, "D": D},
        integers=(H_q, keys.shape[2], keys.shape[1], block_tables.shape[1]),
        reals=(scale,),
    )
