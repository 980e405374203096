"""Refuse arguments of paged attention whose shapes don't fit each other or that lead out of the pool."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, Ints, QuantizedBlocks
from kernel_runtime.shapes import heads_per_kv_head

PagedAttention = Callable[[mx.array, mx.array, mx.array, BlockLayout], mx.array]
"""`paged_attention_simple`, or a faster one."""
Attend = TypeVar("Attend", bound=PagedAttention)


def checked(attend: Attend) -> Attend:
    """Return the same attention function with its arguments checked: it raises ValueError before it starts.

    Reading the numbers of an array means waiting for them. `ForwardBatch.of` has checked its own, so a model
    that attends in every layer calls what `unchecked` returns.
    """

    @wraps(attend)
    def checking(
        query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, *options: Any, **named: Any
    ) -> mx.array:
        check_paged_shapes(query, keys, values, layout)
        check_paged_numbers(layout, query.shape[0], *keys.shape[:2])
        return attend(query, keys, values, layout, *options, **named)

    return cast(Attend, checking)


Function = TypeVar("Function", bound=Callable[..., mx.array])


def unchecked(attend: Function) -> Function:
    """Return the function that was passed to `checked`; any other function unchanged."""
    return cast(Function, getattr(attend, "__wrapped__", attend))


QuantizedPagedAttention = Callable[[mx.array, QuantizedBlocks, BlockLayout, mx.array], mx.array]
"""`quantized_paged_attention_simple`, or a faster one."""
QuantizedAttend = TypeVar("QuantizedAttend", bound=QuantizedPagedAttention)


def checked_quantized(attend: QuantizedAttend) -> QuantizedAttend:
    """Return the same attention to quantized blocks with its arguments checked, as `checked` does."""

    @wraps(attend)
    def checking(
        query: mx.array,
        blocks: QuantizedBlocks,
        layout: BlockLayout,
        tails: mx.array,
        *options: Any,
        **named: Any,
    ) -> mx.array:
        check_paged_shapes(query, blocks.tail_keys, blocks.tail_values, layout)
        check_quantized_shapes(blocks)
        check_paged_numbers(layout, query.shape[0], *blocks.keys.shape[:2])
        check_tails(blocks.tail_keys.shape[0], query.shape[0], tails)
        return attend(query, blocks, layout, tails, *options, **named)

    return cast(QuantizedAttend, checking)


def check_quantized_shapes(blocks: QuantizedBlocks) -> None:
    """Raise ValueError unless quantized blocks fit each other and the blocks of floats."""
    keys, values, tail_keys, _ = blocks
    _, block_size, H, _ = tail_keys.shape
    for name, words in (("keys", keys), ("values", values)):
        if words.ndim != 4 or words.shape[1:3] != (block_size, H) or words.dtype != mx.uint32:
            raise ValueError(
                f"{name} must be [num_blocks, {block_size}, {H}, words] of uint32, as the tails have "
                f"{block_size} slots and {H} heads, got {words.shape} of {words.dtype}"
            )
    if keys.shape[0] != values.shape[0]:
        raise ValueError(
            f"keys and values must have as many blocks, got {keys.shape[0]} and {values.shape[0]}"
        )


def check_tails(num_tails: int, num_queries: int, tails: mx.array) -> None:
    """Raise ValueError unless there is one block of floats for each query."""
    if tails.shape != (num_queries,) or not mx.issubdtype(tails.dtype, mx.integer):
        raise ValueError(
            f"tails must be [{num_queries}] integers, one per query, got {tails.shape} of {tails.dtype}"
        )
    numbers = np.array(tails)
    is_outside = (numbers < 0) | (numbers >= num_tails)
    if is_outside.any():
        row = int(np.argmax(is_outside))
        raise ValueError(f"tails[{row}] is {numbers[row]}, but there are tails 0 to {num_tails - 1}")


def check_paged_shapes(query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout) -> None:
    """Raise ValueError for shapes that don't fit each other, and for a layout that doesn't hold integers."""
    if query.ndim != 3 or keys.ndim != 4 or values.shape != keys.shape or query.shape[2] != keys.shape[3]:
        raise ValueError(
            "query must be [T, H_q, D], keys and values both [num_blocks, block_size, H, D], "
            f"got {query.shape}, {keys.shape} and {values.shape}"
        )
    heads_per_kv_head(query.shape[1], keys.shape[2])
    tables, starts, lengths = layout.block_tables, layout.query_start_loc, layout.seq_lens
    N = lengths.size
    if (
        query.shape[0] < N
        or N == 0
        or tables.shape[:1] != (N,)
        or tables.ndim != 2
        or starts.shape != (N + 1,)
        or lengths.ndim != 1
    ):
        raise ValueError(
            "N sequences need at least N queries, block_tables [N, longest], query_start_loc [N + 1] and "
            f"seq_lens [N], got {query.shape[0]} queries, {tables.shape}, {starts.shape} and {lengths.shape}"
        )
    for name, places in (("block_tables", tables), ("query_start_loc", starts), ("seq_lens", lengths)):
        if not mx.issubdtype(places.dtype, mx.integer):
            raise ValueError(f"{name} must hold integers, got {places.dtype}")


def check_paged_numbers(layout: BlockLayout, num_queries: int, num_blocks: int, block_size: int) -> None:
    """Raise ValueError for queries or blocks that are not there: the numbers of a layout lead astray."""
    tables, starts, lengths = layout.numbers()
    check_queries(num_queries, starts, lengths)
    check_tables(num_blocks, block_size, tables, lengths)


def check_queries(num_queries: int, query_start_loc: Ints, seq_lens: Ints) -> None:
    """Raise ValueError unless each sequence has at least one query, and a context that includes its queries.

    Args:
        num_queries: T
        query_start_loc: [N + 1]
        seq_lens: [N]
    """
    own = np.diff(query_start_loc.astype(np.int64))
    if query_start_loc[0] != 0 or query_start_loc[-1] != num_queries or own.min() < 1:
        raise ValueError(
            f"query_start_loc must rise from 0 to {num_queries}, the number of queries, with at least one "
            f"query per sequence, got {query_start_loc.tolist()}"
        )
    if (own > seq_lens).any():
        i = int(np.argmax(own > seq_lens))
        raise ValueError(
            f"sequence {i} has {own[i]} queries, but seq_lens says {seq_lens[i]}: "
            "a context includes its queries"
        )


def check_tables(num_blocks: int, block_size: int, block_tables: Ints, seq_lens: Ints) -> None:
    """Raise ValueError unless each table has blocks for its whole context, all of them in the pool.

    Args:
        num_blocks, block_size: of the pool.
        block_tables: [N, longest]; entries beyond the context may be anything.
        seq_lens: [N]
    """
    longest = block_tables.shape[1]
    num_used = -(-seq_lens.astype(np.int64) // block_size)
    if num_used.max() > longest:
        i = int(np.argmax(num_used))
        raise ValueError(
            f"the context of sequence {i} has {seq_lens[i]} tokens, which need "
            f"{num_used[i]} blocks of {block_size}, but block_tables has room for {longest}"
        )
    is_used = np.arange(longest) < num_used[:, None]
    is_outside = is_used & ((block_tables < 0) | (block_tables >= num_blocks))
    if is_outside.any():
        i, j = np.argwhere(is_outside)[0]
        raise ValueError(
            f"block_tables[{i}, {j}] is {block_tables[i, j]}, but the pool has blocks 0 to {num_blocks - 1}"
        )
