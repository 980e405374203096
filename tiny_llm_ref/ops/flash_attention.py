"""FlashAttention in array operations: softmax block by block of keys, without ever making an [L, S] array.

Source: arXiv:2307.08691, algorithm 1; the online softmax is that of arXiv:1805.02867.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from kernel_runtime.shapes import heads_per_kv_head, shaped

from .attention import Mask, check_mask

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
    return SoftmaxState(
        maximum=mx.full((*shape, 1), -mx.inf), total=mx.zeros((*shape, 1)), weighted=mx.zeros((*shape, D))
    )


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
    maximum = mx.maximum(state.maximum, mx.max(scores, axis=-1, keepdims=True))
    # The maximum of a row that has seen no key yet is -inf, and -inf minus -inf is NaN.
    reference = mx.where(maximum == -mx.inf, 0.0, maximum)
    shrink = mx.exp(state.maximum - reference)
    weights = mx.exp(scores - reference)
    return SoftmaxState(
        maximum,
        total=state.total * shrink + mx.sum(weights, axis=-1, keepdims=True),
        weighted=state.weighted * shrink + weights @ value,
    )


def weighted_average(state: SoftmaxState) -> mx.array:
    """Return the values averaged by the softmax of all scores, [..., L, D]; nan in a row that saw no key."""
    return state.weighted / state.total


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
    num_visible = S - L + queries.stop if is_causal else S
    return [range(start, min(start + block_size, num_visible)) for start in range(0, num_visible, block_size)]


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
    """Slice x along an axis, unless the axis is missing or of size 1."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return x[..., block.start : block.stop] if axis == -1 else x[..., block.start : block.stop, :]


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
    """Slice the rows of [..., rows, D] and cast them to float32, the type of all sums."""
    return x[..., block.start : block.stop, :].astype(mx.float32)


def _after(x: mx.array, *earlier: mx.array) -> mx.array:
    """Return x, but make MLX compute `earlier` before anything that uses it.

    MLX is lazy and chooses its own order. It would start many blocks at once and keep all of their scores
    in memory.
    """
    ordered: mx.array = mx.depends(x, earlier)
    return ordered


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
    *batch, H_q, L, D = query.shape
    H, S = key.shape[-3], key.shape[-2]
    check_mask(mask, (*batch, H_q, L, S))
    num_groups = heads_per_kv_head(H_q, H)
    if isinstance(mask, str) and L > S:
        raise ValueError(f"a causal mask of {L} queries needs at least {L} keys, got {S}")
    if query_block < 1 or key_block < 1:
        raise ValueError(
            f"query_block and key_block must be at least 1, got query_block {query_block}, "
            f"key_block {key_block}"
        )
    factor = D**-0.5 if scale is None else scale
    scaled = query.reshape(*batch, H, num_groups, L, D).astype(mx.float32) * factor
    key, value = mx.expand_dims(key, -3), mx.expand_dims(value, -3)
    if isinstance(mask, mx.array):
        mask = _by_group(mask, num_groups)
    outputs: list[mx.array] = []
    for start in range(0, max(L, 1), query_block):  # no queries: one empty block
        queries = range(start, min(start + query_block, L))
        output = attend_queries(scaled, key, value, mask, queries, key_block)
        outputs.append(output.astype(query.dtype))
        scaled = _after(scaled, outputs[-1])
    return mx.concatenate(outputs, axis=-2).reshape(*batch, H_q, L, D)


def _by_group(mask: mx.array, num_groups: int) -> mx.array:
    """Reshape a mask [..., H_q or 1, L, S] to [..., H or 1, groups or 1, L, S]."""
    if mask.ndim < 3:
        return mask
    if mask.shape[-3] == 1:
        return mx.expand_dims(mask, -3)
    return mask.reshape(*mask.shape[:-3], -1, num_groups, *mask.shape[-2:])
