"""Attention over quantized blocks, with the newest tokens of each sequence in floats."""

import mlx.core as mx

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.paged_check import checked_quantized


@checked_quantized
def quantized_paged_attention_simple(
    query: mx.array,
    blocks: QuantizedBlocks,
    layout: BlockLayout,
    tails: mx.array,
    scale: float | None = None,
) -> mx.array:
    """Causal attention to full blocks, which are quantized, and to the tail after them, which is not.

    What a query sees depends only on its position. A query at position p sees p + 1 tokens. Those that fill
    whole blocks are read from the quantized blocks, including the query's own token if it fills a block. The
    others, fewer than a block, are the query's tail. They are the first slots of one block of floats.

    Args:
        query: [T, H_q, D]
        blocks: `keys` and `values` [num_blocks, block_size, H, words per head], in 4 or 8 bits each;
            `tail_keys` and `tail_values` [num_tails, block_size, H, D], floats.
        layout: as for `paged_attention_simple`.
        tails: [T], the block of floats that holds the tail of each query, the same for all queries of a
            sequence in one block. Ignored for a query without a tail.
        scale: multiplies the scores; 1 / sqrt(D) by default.

    Returns:
        [T, H_q, D], in the type of the query; dequantized entries, scores, softmax and sums are float32.

    Raises:
        ValueError: raised by `checked_quantized`. The shapes of `query`, `keys`, `values`, `tail_keys` and
            `tail_values` do not fit each other, or `keys` or `values` are not uint32; `num_words` (words per
            head) fits neither 4 nor 8 bits; `H_q` is not a multiple of `H`; `tails` is not [T] integers, or
            has a `tail` that does not exist; the shapes of `block_tables`, `query_start_loc` and `seq_lens`
            do not fit each other, or one of them does not hold integers; `query_start_loc` does not rise from
            0 to T; a sequence's `seq_len` is smaller than its `num_queries` or too long for its table; or the
            table has a `block_id` that is not in the pool.
    """
    raise NotImplementedError("week 4 day 1 task 2: quantized_paged_attention_simple is not written yet")


def seen_entries(blocks: mx.array, tail: mx.array) -> mx.array:
    """Entries of some quantized blocks, then those of a tail, by head.

    Args:
        blocks: [num_full, block_size, H, words per head]; `num_full` may be 0.
        tail: [num_in_tail, H, D]; `num_in_tail` may be 0.

    Returns:
        [1, H, num_full x block_size + num_in_tail, D], float32.
    """
    raise NotImplementedError("week 4 day 1 task 2: seen_entries is not written yet")
