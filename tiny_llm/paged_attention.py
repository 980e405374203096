"""Attention over keys and values that lie in blocks, for a ragged batch of queries."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
PagedAttention = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], mx.array]
"""`paged_attention_simple`, or a faster one."""


def paged_attention_simple(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    block_tables: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
    scale: float | None = None,
) -> mx.array:
    """Causal attention, sequence by sequence, on a copy of its blocks.

    The T queries are those of N sequences, one behind the other; those of a sequence are the last of its
    context, whose keys are in place already.

    Args:
        query: [T, H_q, D]
        keys, values: [num_blocks, block_size, H, D]
        block_tables: [N, longest]; entry j of row i is the block of tokens j x block_size on of sequence i;
            what lies behind its context is not looked at.
        query_starts: [N + 1]; the queries of sequence i are those from entry i to before entry i + 1.
        context_lengths: [N]
        scale: factor of the scores, 1 / sqrt(D) unless given.

    Returns:
        [T, H_q, D], in the type of the query.

    Raises:
        ValueError: the shapes do not fit each other.

    Source: PagedAttention, arXiv:2309.06180.
    """
    raise NotImplementedError("week 3 day 3 task 2: paged_attention_simple is not written yet")


def paged_attention(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    block_tables: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
    scale: float | None = None,
) -> mx.array:
    """`paged_attention_simple` with one call for all sequences of as many queries, such as all that decode.

    Arguments, result and errors are those of `paged_attention_simple`.
    """
    raise NotImplementedError("week 3 day 3 task 3: paged_attention is not written yet")


def attend_alike(
    query: mx.array, keys: mx.array, values: mx.array, tables: Ints, lengths: Ints, scale: float | None
) -> mx.array:
    """Attention of n sequences with L queries each, on copies of their blocks as long as the longest.

    Args:
        query: [n, L, H_q, D]
        keys, values: as for `paged_attention_simple`.
        tables, lengths: [n, longest] and [n], the sequences' block tables and context lengths.
        scale: as for `paged_attention_simple`.

    Returns:
        [n, L, H_q, D]
    """
    raise NotImplementedError("week 3 day 3 task 3: attend_alike is not written yet")


def padded_slots(tables: Ints, lengths: Ints, block_size: int) -> Ints:
    """The slot of each token of some contexts, [n, longest]; behind the end of one, that of its first token.

    A masked weight is 0, and 0 times NaN is NaN: what is masked must be a number, so it is one of the
    sequence's own.

    Args:
        tables, lengths: [n, longest] and [n], as for `attend_alike`.
    """
    raise NotImplementedError("week 3 day 3 task 3: padded_slots is not written yet")


def check_paged_shapes(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    block_tables: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
) -> None:
    """ValueError for shapes that do not fit each other; what the tables hold is not looked at."""
    if query.ndim != 3 or keys.ndim != 4 or values.shape != keys.shape or query.shape[2] != keys.shape[3]:
        raise ValueError(
            "query must be [T, H_q, D], keys and values both [num_blocks, block_size, H, D], "
            f"got {query.shape}, {keys.shape} and {values.shape}"
        )
    H_q, H = query.shape[1], keys.shape[2]
    if H_q % H != 0:
        raise ValueError(f"{H_q} query heads cannot share {H} key heads evenly: H_q must be a multiple of H")
    N = context_lengths.size
    if (
        query.shape[0] < N
        or N == 0
        or block_tables.shape[:1] != (N,)
        or block_tables.ndim != 2
        or query_starts.shape != (N + 1,)
        or context_lengths.ndim != 1
    ):
        raise ValueError(
            "N sequences with a query each at least have block_tables [N, longest], query_starts [N + 1] and "
            f"context_lengths [N]; got {query.shape[0]} queries, {block_tables.shape}, {query_starts.shape} "
            f"and {context_lengths.shape}"
        )
