"""FlashAttention in array operations: softmax over blocks of keys, so that no [L, S] array is ever made.

Source: arXiv:2307.08691, algorithm 1; the softmax in pieces is that of arXiv:1805.02867.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from kernel_runtime.shapes import heads_per_kv_head

from .attention import Mask, check_mask

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
    return SoftmaxState(
        maximum=mx.full((*shape, 1), -mx.inf), total=mx.zeros((*shape, 1)), weighted=mx.zeros((*shape, D))
    )


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
    maximum = mx.maximum(state.maximum, mx.max(scores, axis=-1, keepdims=True))
    # A row that has seen no key yet is still at -inf, and -inf minus -inf is not a number.
    reference = mx.where(maximum == -mx.inf, 0.0, maximum)
    shrink = mx.exp(state.maximum - reference)
    weights = mx.exp(scores - reference)
    return SoftmaxState(
        maximum,
        total=state.total * shrink + mx.sum(weights, axis=-1, keepdims=True),
        weighted=state.weighted * shrink + weights @ value,
    )


def weighted_average(state: SoftmaxState) -> mx.array:
    """The values [..., L, D] averaged by softmax of all scores; nan in a row that saw no key at all."""
    return state.weighted / state.total


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
    num_visible = S - L + queries.stop if is_causal else S
    return [range(start, min(start + block_size, num_visible)) for start in range(0, num_visible, block_size)]


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
    check_mask(mask)
    if mask is None:
        return None
    if not isinstance(mask, str):
        return _part(_part(mask, -2, queries), -1, keys)
    first_position = S - L + queries.start
    if keys.stop <= first_position + 1:
        return None
    query_position = first_position + mx.arange(len(queries))[:, None]
    key_position = keys.start + mx.arange(len(keys))[None, :]
    return mx.where(key_position <= query_position, 0.0, -mx.inf)


def _part(x: mx.array, axis: int, block: range) -> mx.array:
    """x[block] along an axis, unless x is alike along it."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return x[..., block.start : block.stop] if axis == -1 else x[..., block.start : block.stop, :]


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
    *leading, L, D = query.shape
    S = key.shape[-2]
    block = _rows(query, queries)
    state = empty_state([*leading, len(queries)], D)
    for keys in visible_blocks(queries, L, S, key_block, is_causal=isinstance(mask, str)):
        block = _after(block, state.total, state.weighted)
        scores = block @ _rows(key, keys).swapaxes(-1, -2)
        added = block_mask(mask, queries, keys, L, S)
        if added is not None:
            scores = scores + added
        state = absorb_block(state, scores, _rows(value, keys))
    return weighted_average(state)


def _rows(x: mx.array, block: range) -> mx.array:
    """Some rows of [..., rows, D], in float32: half precision is for what is stored, not for sums."""
    return x[..., block.start : block.stop, :].astype(mx.float32)


def _after(x: mx.array, *earlier: mx.array) -> mx.array:
    """x itself, but what is computed from it is computed after `earlier`.

    MLX is lazy and evaluates in an order of its own: it would begin many blocks at once, each with its
    scores in memory.
    """
    ordered: mx.array = mx.depends(x, earlier)
    return ordered


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
    check_mask(mask)
    *batch, H_q, L, D = query.shape
    H, S = key.shape[-3], key.shape[-2]
    num_groups = heads_per_kv_head(H_q, H)
    if isinstance(mask, str) and L > S:
        raise ValueError(f"a causal mask of {L} queries needs at least {L} keys, got {S}")
    if query_block < 1 or key_block < 1:
        raise ValueError(f"a block holds at least 1, got query_block {query_block}, key_block {key_block}")
    factor = D**-0.5 if scale is None else scale
    scaled = query.reshape(*batch, H, num_groups, L, D).astype(mx.float32) * factor
    key, value = mx.expand_dims(key, -3), mx.expand_dims(value, -3)
    if isinstance(mask, mx.array):
        mask = _by_group(mask, num_groups)
    outputs: list[mx.array] = []
    for start in range(0, max(L, 1), query_block):  # without queries, one empty block
        queries = range(start, min(start + query_block, L))
        output = attend_queries(scaled, key, value, mask, queries, key_block)
        outputs.append(output.astype(query.dtype))
        scaled = _after(scaled, outputs[-1])
    return mx.concatenate(outputs, axis=-2).reshape(*batch, H_q, L, D)


def _by_group(mask: mx.array, num_groups: int) -> mx.array:
    """A mask [..., H_q or 1, L, S] as [..., H, groups, L, S], alike for all where it was."""
    if mask.ndim < 3:
        return mask
    if mask.shape[-3] == 1:
        return mx.expand_dims(mask, -3)
    return mask.reshape(*mask.shape[:-3], -1, num_groups, *mask.shape[-2:])
