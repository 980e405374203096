"""Attention over keys and values that lie in blocks, for a ragged batch of queries."""

from itertools import pairwise

import mlx.core as mx
import numpy as np

from kernel_runtime.paged_check import Ints, checked

from .attention import scaled_dot_product_attention_grouped


@checked
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
        [T, H_q, D], in the type of the query; scores, softmax and sums are float32.

    Raises:
        ValueError: by `checked`. The shapes of `query`, `keys` and `values` do not fit each other; `H_q` is
            not a multiple of `H`; the shapes of `block_tables`, `query_starts` and `context_lengths` do not
            fit; `query_starts` do not rise from 0 to T; a sequence's `context_length` is below its
            `num_queries` or beyond its table; or the table has a `block_id` that is none of the pool's.

    Source: PagedAttention, arXiv:2309.06180.
    """
    _, block_size, H, D = keys.shape
    starts, lengths = np.array(query_starts).tolist(), np.array(context_lengths).tolist()
    outputs = []
    for i, ((start, end), S) in enumerate(zip(pairwise(starts), lengths, strict=True)):
        blocks = block_tables[i, : -(-S // block_size)]
        key, value = (x[blocks].reshape(-1, H, D)[:S].swapaxes(0, 1)[None] for x in (keys, values))
        rows = query[start:end].swapaxes(0, 1)[None].astype(mx.float32)  # [1, H_q, L, D]
        attended = scaled_dot_product_attention_grouped(rows, key, value, scale, "causal")
        outputs.append(attended[0].swapaxes(0, 1))
    return mx.concatenate(outputs).astype(query.dtype)


@checked
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

    Arguments, result and ValueError are those of `paged_attention_simple`.
    """
    tables, starts, lengths = (np.array(x) for x in (block_tables, query_starts, context_lengths))
    num_queries = np.diff(starts)
    rows, outputs = [], []
    for L in np.unique(num_queries):
        alike = np.flatnonzero(num_queries == L)
        own_rows = starts[alike, None] + np.arange(L)  # [sequences of L queries, L]
        own_query = query[mx.array(own_rows)]
        output = attend_alike(own_query, keys, values, tables[alike], lengths[alike], scale)
        rows.append(own_rows.reshape(-1))
        outputs.append(output.reshape(-1, *query.shape[1:]))
    attended = mx.concatenate(outputs)[mx.array(np.argsort(np.concatenate(rows)))]
    return attended.astype(query.dtype)


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
        [n, L, H_q, D] in float32, as are scores, softmax and sums.
    """
    L, S = query.shape[1], int(lengths.max())
    slots = mx.array(padded_slots(tables, lengths, keys.shape[1]))
    key, value = (x.reshape(-1, *x.shape[2:])[slots].swapaxes(1, 2) for x in (keys, values))
    num_visible = lengths[:, None] - L + 1 + np.arange(L)  # [n, L]
    is_visible = mx.array(np.arange(S) < num_visible[:, :, None])[:, None]  # [n, 1, L, S]
    mask = mx.where(is_visible, 0.0, -mx.inf)
    rows = query.swapaxes(1, 2).astype(mx.float32)
    return scaled_dot_product_attention_grouped(rows, key, value, scale, mask).swapaxes(1, 2)


def padded_slots(tables: Ints, lengths: Ints, block_size: int) -> Ints:
    """The slot of each token of some contexts, [n, longest]; behind the end of one, that of its first token.

    A masked weight is 0, and 0 times NaN is NaN: what is masked must be a number, so it is one of the
    sequence's own.

    Args:
        tables, lengths: [n, longest] and [n], as for `attend_alike`.
    """
    positions = np.broadcast_to(np.arange(lengths.max()), (len(lengths), lengths.max()))
    positions = np.where(positions < lengths[:, None], positions, 0)
    blocks = np.take_along_axis(tables, positions // block_size, axis=1)
    slots: Ints = blocks * block_size + positions % block_size
    return slots
