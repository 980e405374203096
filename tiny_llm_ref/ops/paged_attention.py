"""Attention over keys and values stored in blocks, for a ragged batch of queries."""

from itertools import pairwise

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, Ints
from kernel_runtime.paged_check import checked

from .attention import scaled_dot_product_attention_grouped


@checked
def paged_attention_simple(
    query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, scale: float | None = None
) -> mx.array:
    """Causal attention, one sequence at a time, on a copy of its blocks.

    The T queries belong to N sequences and are stored back to back. The keys of a sequence's queries are
    already in its blocks.

    Args:
        query: [T, H_q, D]
        keys, values: [num_blocks, block_size, H, D]
        layout: `block_tables` [N, longest], `query_start_loc` [N + 1] and `seq_lens` [N], which say where
            each sequence's queries and keys are.
        scale: multiplies the scores; 1 / sqrt(D) by default.

    Returns:
        [T, H_q, D], in the type of the query; scores, softmax and sums are float32.

    Raises:
        ValueError: raised by `checked`. The shapes of `query`, `keys` and `values` do not fit each other;
            `H_q` is not a multiple of `H`; the shapes of `block_tables`, `query_start_loc` and `seq_lens`
            do not fit each other, or one of them does not hold integers; `query_start_loc` does not rise from
            0 to T; a sequence's `seq_len` is smaller than its `num_queries` or too long for its table; or the
            table has a `block_id` that is not in the pool.

    Source: PagedAttention, arXiv:2309.06180.
    """
    _, block_size, H, D = keys.shape
    starts, lengths = np.array(layout.query_start_loc).tolist(), np.array(layout.seq_lens).tolist()
    outputs = []
    for i, ((start, end), S) in enumerate(zip(pairwise(starts), lengths, strict=True)):
        blocks = layout.block_tables[i, : -(-S // block_size)]
        key, value = (x[blocks].reshape(-1, H, D)[:S].swapaxes(0, 1)[None] for x in (keys, values))
        rows = query[start:end].swapaxes(0, 1)[None].astype(mx.float32)  # [1, H_q, L, D]
        attended = scaled_dot_product_attention_grouped(rows, key, value, scale, "causal")
        outputs.append(attended[0].swapaxes(0, 1))
    return mx.concatenate(outputs).astype(query.dtype)


@checked
def paged_attention(
    query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, scale: float | None = None
) -> mx.array:
    """Do what `paged_attention_simple` does, with one call for all sequences of equal query length.

    All decoding sequences, for example, have one query each.
    Arguments, result and ValueError are those of `paged_attention_simple`.
    """
    tables, starts, lengths = layout.numbers()
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
    """Attend for n sequences with L queries each, on copies of their blocks, padded to the longest context.

    Args:
        query: [n, L, H_q, D]
        keys, values: as for `paged_attention_simple`.
        tables, lengths: [n, longest] and [n], the sequences' block tables and context lengths.
        scale: as for `paged_attention_simple`.

    Returns:
        [n, L, H_q, D] in float32; scores, softmax and sums are float32 as well.
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
    """Slot of each token of each context, [n, longest], padded with the slot of the context's first token.

    The padding is masked, so its weight is 0. But 0 times NaN is NaN, and another sequence's slot could hold
    NaN. A slot of the sequence itself is safe.

    Args:
        tables, lengths: [n, longest] and [n], as for `attend_alike`.
    """
    positions = np.broadcast_to(np.arange(lengths.max()), (len(lengths), lengths.max()))
    positions = np.where(positions < lengths[:, None], positions, 0)
    blocks = np.take_along_axis(tables, positions // block_size, axis=1)
    slots: Ints = blocks * block_size + positions % block_size
    return slots
