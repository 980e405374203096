"""Attention over keys and values stored in blocks, for a ragged batch of queries."""

import mlx.core as mx

from kernel_runtime.block_layout import BlockLayout, Ints
from kernel_runtime.paged_check import checked


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
    raise NotImplementedError("week 3 day 3 task 2: paged_attention_simple is not written yet")


@checked
def paged_attention(
    query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, scale: float | None = None
) -> mx.array:
    """Do what `paged_attention_simple` does, with one call for all sequences of equal query length.

    All decoding sequences, for example, have one query each.
    Arguments, result and ValueError are those of `paged_attention_simple`.
    """
    raise NotImplementedError("week 3 day 3 task 3: paged_attention is not written yet")


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
    raise NotImplementedError("week 3 day 3 task 3: attend_alike is not written yet")


def padded_slots(tables: Ints, lengths: Ints, block_size: int) -> Ints:
    """Slot of each token of each context, [n, longest], padded with the slot of the context's first token.

    The padding is masked, so its weight is 0. But 0 times NaN is NaN, and another sequence's slot could hold
    NaN. A slot of the sequence itself is safe.

    Args:
        tables, lengths: [n, longest] and [n], as for `attend_alike`.
    """
    raise NotImplementedError("week 3 day 3 task 3: padded_slots is not written yet")
