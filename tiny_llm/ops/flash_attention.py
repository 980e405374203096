"""FlashAttention in array operations: softmax block by block of keys, without ever making an [L, S] array.

Source: arXiv:2307.08691, algorithm 1; the online softmax is that of arXiv:1805.02867.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from kernel_runtime.shapes import shaped

from .attention import Mask

QUERY_BLOCK = 128
KEY_BLOCK = 512


@dataclass(frozen=True)
class SoftmaxState:
    """Running sums of attention over the keys read so far, enough to continue with the rest. All in float32.

    Attributes:
        maximum: [..., L, 1], the largest score so far; -inf while every key has been hidden.
        total: [..., L, 1], the sum of exp(score - maximum).
        weighted: [..., L, D], the sum of exp(score - maximum) x value.
    """

    maximum: mx.array
    total: mx.array
    weighted: mx.array


def empty_state(shape: Sequence[int], D: int) -> SoftmaxState:
    """Make the state before the first key.

    Args:
        shape: [..., L], the shape of the queries without their last axis.
        D: number of dimensions of a value.
    """
    raise NotImplementedError("week 2 day 4 task 1: empty_state is not written yet")


def absorb_block(state: SoftmaxState, scores: mx.array, value: mx.array) -> SoftmaxState:
    """Add one more block of keys to the state.

    The maximum can only rise. When it does, multiply the sums collected under the old maximum by
    exp(old maximum - new maximum).

    Args:
        state: after the earlier keys.
        scores: [..., L, s] in float32, scaled and masked. A score of -inf hides a key. A row may hide all
            of its keys.
        value: [..., s, D] in float32

    Returns:
        A new state. The old one is unchanged.
    """
    raise NotImplementedError("week 2 day 4 task 1: absorb_block is not written yet")


def weighted_average(state: SoftmaxState) -> mx.array:
    """Return the values averaged by the softmax of all scores, [..., L, D]; nan in a row that saw no key."""
    raise NotImplementedError("week 2 day 4 task 1: weighted_average is not written yet")


def visible_blocks(queries: range, L: int, S: int, block_size: int, is_causal: bool) -> list[range]:
    """List the blocks of keys that a block of queries has to read, first to last.

    The L queries are the last L of the S positions. Under the causal mask, stop at the key of the block's
    last query, so that no block lies entirely above the diagonal.

    Args:
        queries: the rows of the block, within 0 to L - 1.
        L: total number of queries.
        S: total number of keys, at least L if is_causal.
        block_size: keys per block; the last block may be shorter.
        is_causal: whether a query sees only itself and earlier positions.
    """
    raise NotImplementedError("week 2 day 4 task 2: visible_blocks is not written yet")


def block_mask(mask: Mask, queries: range, keys: range, L: int, S: int) -> mx.array | None:
    """Cut out the part of a mask that belongs to one block of queries and one block of keys.

    Args:
        mask: broadcast to [..., L, S], "causal", or None. A missing axis, or one of size 1, applies
            to all queries or all keys.
        queries: rows, within 0 to L - 1.
        keys: columns, within 0 to S - 1.
        L: total number of queries.
        S: total number of keys.

    Returns:
        An array that broadcasts to [..., len(queries), len(keys)]; None if there is no mask, or if the
        causal mask hides nothing in this block.

    Raises:
        ValueError: `mask` is a string other than "causal".
    """
    raise NotImplementedError("week 2 day 4 task 2: block_mask is not written yet")


def attend_queries(
    query: mx.array, key: mx.array, value: mx.array, mask: Mask, queries: range, key_block: int = KEY_BLOCK
) -> mx.array:
    """Attend with one block of queries, one block of keys at a time.

    Start a block of scores only after the previous one has been summed up, so that few are in memory at once.

    Args:
        query: [..., L, D], already multiplied by the scale.
        key: [..., S, D]
        value: [..., S, D]
        mask: broadcast to [..., L, S] and added to the scores; or "causal".
        queries: the rows of the block, within 0 to L - 1.
        key_block: largest number of keys in a block.

    Returns:
        [..., len(queries), D] in float32, whatever the types of the inputs.
    """
    raise NotImplementedError("week 2 day 4 task 3: attend_queries is not written yet")


@shaped(query="[..., H_q, L, D]", key="[..., H, S, D]", value="[..., H, S, D]")
def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
) -> mx.array:
    """Grouped-query attention whose memory grows with L + S, not with L x S.

    The result equals that of `scaled_dot_product_attention_grouped`. In both, a query whose keys are all
    hidden gets nan, since it has nothing to average.

    Args:
        query: [..., H_q, L, D]
        key: [..., H, S, D], where H divides H_q.
        value: [..., H, S, D]
        scale: multiplies the scores; 1 / sqrt(D) by default.
        mask: broadcast to [..., H_q, L, S] and added to the scores; or "causal", which skips hidden keys.
        query_block: largest number of queries in a block.
        key_block: largest number of keys in a block.

    Returns:
        [..., H_q, L, D] in the type of the query; the sums are float32. Empty if there are no queries.

    Raises:
        ValueError: `H_q` is not a multiple of `H`; the mask is causal and `L` is larger than `S`; `mask` is
            a string other than "causal", or an array that does not fit (`check_mask` checks both); or
            `query_block` or `key_block` is below 1. `shaped` checks that query, `key` and `value` fit.
    """
    raise NotImplementedError("week 2 day 4 task 4: flash_attention is not written yet")
