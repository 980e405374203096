"""FlashAttention in array operations: softmax over blocks of keys, so that no [L, S] array is ever made.

Source: arXiv:2307.08691, algorithm 1; the softmax in pieces is that of arXiv:1805.02867.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from .attention import Mask

QUERY_BLOCK = 128
KEY_BLOCK = 512


@dataclass(frozen=True)
class SoftmaxState:
    """What attention to some of the keys leaves behind: enough to go on with the others. All in float32.

    Attributes:
        maximum: [..., L, 1], the largest score so far; -inf as long as all were hidden.
        total: [..., L, 1], the sum of exp(score - maximum).
        weighted: [..., L, D], the sum of exp(score - maximum) x value.
    """

    maximum: mx.array
    total: mx.array
    weighted: mx.array


def empty_state(shape: Sequence[int], D: int) -> SoftmaxState:
    """The state before the first key.

    Args:
        shape: [..., L], the queries.
        D: dimensions of a value.
    """
    raise NotImplementedError("week 2 day 4 task 1: empty_state is not written yet")


def absorb_block(state: SoftmaxState, scores: mx.array, value: mx.array) -> SoftmaxState:
    """The state after one more block of keys.

    The maximum can only rise. When it does, what was summed up under the old one shrinks by
    exp(old maximum - new maximum).

    Args:
        state: what the keys before left.
        scores: [..., L, s] in float32, scaled and masked; -inf hides a key, and may hide all of a row.
        value: [..., s, D] in float32

    Returns:
        A new state; the old one stays as it is.
    """
    raise NotImplementedError("week 2 day 4 task 1: absorb_block is not written yet")


def weighted_average(state: SoftmaxState) -> mx.array:
    """The values [..., L, D] averaged by softmax of all scores; nan in a row that saw no key at all."""
    raise NotImplementedError("week 2 day 4 task 1: weighted_average is not written yet")


def visible_blocks(queries: range, L: int, S: int, block_size: int, is_causal: bool) -> list[range]:
    """The blocks of keys that a block of queries has to visit, first to last.

    The L queries are the last L of the S positions. Under the causal mask the keys end at the last query
    of the block: no block lies wholly above the diagonal.

    Args:
        queries: the rows of the block, among 0 to L - 1.
        L: number of all queries.
        S: number of all keys, at least L if is_causal.
        block_size: keys of a block; the last one may be shorter.
        is_causal: whether a query sees only itself and what came before.
    """
    raise NotImplementedError("week 2 day 4 task 2: visible_blocks is not written yet")


def block_mask(mask: Mask, queries: range, keys: range, L: int, S: int) -> mx.array | None:
    """The part of a mask that falls on one block of queries and keys.

    Args:
        mask: broadcast to [..., L, S], "causal", or None. An axis of size 1, or one that is not
            there, stands for all queries or all keys.
        queries: rows, among 0 to L - 1.
        keys: columns, among 0 to S - 1.
        L: number of all queries.
        S: number of all keys.

    Returns:
        Broadcast to [..., len(queries), len(keys)]; None where a causal mask or none hides nothing.

    Raises:
        ValueError: the `mask` is another string than "causal".
    """
    raise NotImplementedError("week 2 day 4 task 2: block_mask is not written yet")


def attend_queries(
    query: mx.array, key: mx.array, value: mx.array, mask: Mask, queries: range, key_block: int = KEY_BLOCK
) -> mx.array:
    """Attention of one block of queries, key block by key block.

    A block of scores is not begun before the one before is summed up, so that few are held at once.

    Args:
        query: [..., L, D], multiplied by the scale already.
        key: [..., S, D]
        value: [..., S, D]
        mask: broadcast to [..., L, S] and added to the scores; or "causal".
        queries: the rows of the block, among 0 to L - 1.
        key_block: most keys of a block.

    Returns:
        [..., len(queries), D] in float32, whatever the types of the inputs.
    """
    raise NotImplementedError("week 2 day 4 task 3: attend_queries is not written yet")


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
) -> mx.array:
    """Grouped-query attention in memory that grows with L + S, not with L x S.

    The result is that of `scaled_dot_product_attention_grouped`. A query whose keys are all hidden
    gets nan there and here: there is nothing to average.

    Args:
        query: [..., H_q, L, D]
        key: [..., H, S, D], H a divisor of H_q.
        value: [..., H, S, D]
        scale: factor of the scores, 1 / sqrt(D) unless given.
        mask: broadcast to [..., H_q, L, S] and added; or "causal", which skips what it hides.
        query_block: most queries of a block.
        key_block: most keys of a block.

    Returns:
        [..., H_q, L, D] in the type of the query; the sums are float32.

    Raises:
        ValueError: `H_q` is not a multiple of `H`; the mask is causal and `L` larger than `S`; the `mask` is
            another string than "causal"; or one of `query_block` and `key_block` is below 1.
    """
    raise NotImplementedError("week 2 day 4 task 4: flash_attention is not written yet")
