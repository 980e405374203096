"""Attention over keys and values that lie in blocks, for a ragged batch of queries."""

from itertools import pairwise

import mlx.core as mx
import numpy as np

from .attention import scaled_dot_product_attention_grouped


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
        query_starts: [N + 1]; the queries of sequence i are those from entry i to entry i + 1.
        context_lengths: [N]
        scale: factor of the scores, 1 / sqrt(D) unless given.

    Returns:
        [T, H_q, D]

    Source: PagedAttention, arXiv:2309.06180.
    """
    _, block_size, H, D = keys.shape
    starts, lengths = np.array(query_starts).tolist(), np.array(context_lengths).tolist()
    outputs = []
    for i, ((start, end), S) in enumerate(zip(pairwise(starts), lengths, strict=True)):
        blocks = block_tables[i, : -(-S // block_size)]
        key, value = (x[blocks].reshape(-1, H, D)[:S].swapaxes(0, 1)[None] for x in (keys, values))
        rows = query[start:end].swapaxes(0, 1)[None]  # [1, H_q, L, D]
        attended = scaled_dot_product_attention_grouped(rows, key, value, scale, "causal")
        outputs.append(attended[0].swapaxes(0, 1))
    return mx.concatenate(outputs)
