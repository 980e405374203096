"""Attention over quantized blocks, with the newest tokens of each sequence in floats."""

from itertools import pairwise

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.paged_check import checked_quantized

from .attention import scaled_dot_product_attention_grouped
from .quantized_blocks import dequantize_heads


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
    keys, values, tail_keys, tail_values = blocks
    block_size = keys.shape[1]
    numbers = layout.query_start_loc, layout.seq_lens, tails
    starts, lengths, tail_of = (np.array(x).tolist() for x in numbers)
    outputs = []
    for i, ((row, end), S) in enumerate(zip(pairwise(starts), lengths, strict=True)):
        num_seen = S - (end - row) + 1  # tokens that the query in this row sees
        while row < end:
            num_full = num_seen // block_size
            count = min(end - row, (num_full + 1) * block_size - num_seen)  # queries that see as many blocks
            num_in_tail = num_seen + count - 1 - num_full * block_size
            full, tail = layout.block_tables[i, :num_full], tail_of[row + count - 1]
            key = seen_entries(keys[full], tail_keys[tail, :num_in_tail])
            value = seen_entries(values[full], tail_values[tail, :num_in_tail])
            own_query = query[row : row + count].swapaxes(0, 1)[None].astype(mx.float32)
            attended = scaled_dot_product_attention_grouped(own_query, key, value, scale, "causal")
            outputs.append(attended[0].swapaxes(0, 1))
            row, num_seen = row + count, num_seen + count
    return mx.concatenate(outputs).astype(query.dtype)


def seen_entries(blocks: mx.array, tail: mx.array) -> mx.array:
    """Entries of some quantized blocks, then those of a tail, by head.

    Args:
        blocks: [num_full, block_size, H, words per head]; `num_full` may be 0.
        tail: [num_in_tail, H, D]; `num_in_tail` may be 0.

    Returns:
        [1, H, num_full x block_size + num_in_tail, D], float32.
    """
    entries = tail.astype(mx.float32)
    if blocks.size:
        full = dequantize_heads(blocks, tail.shape[-1]).reshape(-1, *tail.shape[1:])
        entries = mx.concatenate([full, entries])
    return entries.swapaxes(0, 1)[None]
