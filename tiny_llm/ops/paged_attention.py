"""Attention over keys and values that lie in blocks, for a ragged batch of queries."""

import mlx.core as mx

from kernel_runtime.paged_check import Ints, checked


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
    raise NotImplementedError("week 3 day 3 task 2: paged_attention_simple is not written yet")


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
        [n, L, H_q, D] in float32, as are scores, softmax and sums.
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
