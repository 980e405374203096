"""Scaled dot-product attention, straight from the formula. Source: arXiv:1706.03762, section 3.2."""

from collections.abc import Sequence
from typing import Literal, Protocol

import mlx.core as mx

from kernel_runtime.shapes import heads_per_kv_head

from .basics import linear, softmax

Mask = mx.array | Literal["causal"] | None
"""An array added to the scores (0 where a query may look, -inf where it may not), "causal", or None."""


def check_mask(mask: Mask, shape: Sequence[int] | None = None) -> None:
    """Raise ValueError if `mask` is a string other than "causal", or an array that does not fit the scores.

    Args:
        mask: as for attention.
        shape: [..., H_q, L, S] of the scores, if a mask that is an array is to be checked as well.
    """
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'mask must be an array, None or "causal", got {mask!r}')
    if shape is None or not isinstance(mask, mx.array):
        return
    own = mask.shape[::-1]
    if mask.ndim > len(shape) or any(
        size not in (1, full) for size, full in zip(own, shape[::-1], strict=False)
    ):
        raise ValueError(f"mask must broadcast to {tuple(shape)}, the shape of the scores, got {mask.shape}")


class Attention(Protocol):
    """An attention function as the model calls it. Later days add faster ones."""

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
    ) -> mx.array: ...


def scaled_dot_product_attention_simple(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | None = None,
) -> mx.array:
    """For each query, average the values, weighted by the softmax of its products with the keys.

    Args:
        query: [..., L, D]
        key: [..., S, D]
        value: [..., S, D]
        scale: multiplies the scores; 1 / sqrt(D) by default.
        mask: broadcast to [..., L, S] and added to the scaled scores.

    Returns:
        [..., L, D], in the promoted type of query, key, value and mask.

    Raises:
        ValueError: `mask` is a string, even "causal".
    """
    if isinstance(mask, str):
        raise ValueError(f"mask must be an array or None, got {mask!r}: build an array with causal_mask")
    D = query.shape[-1]
    scores = (query @ key.swapaxes(-1, -2)) * (D**-0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask
    return softmax(scores, axis=-1) @ value


def causal_mask(L: int, S: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Additive mask that lets each query see itself and every earlier key.

    The L queries are the last L of the S positions, so a chunk of a longer prompt
    sees everything that was cached before it.

    Args:
        L: number of queries, at most S.
        S: number of keys, including cached ones.
        dtype: type of the mask.

    Returns:
        [L, S], 0 where query i may see key j (j <= i + S - L), -inf elsewhere.

    Raises:
        ValueError: `L` is larger than `S`.
    """
    if L > S:
        raise ValueError(f"a mask of {L} queries needs at least {L} keys, got {S}")
    query_position = mx.arange(S - L, S)[:, None]
    key_position = mx.arange(S)[None, :]
    return mx.where(key_position <= query_position, 0.0, -mx.inf).astype(dtype)


def scaled_dot_product_attention_grouped(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
) -> mx.array:
    """Attention in which each group of H_q / H neighboring query heads shares one KV head.

    Broadcast the keys and values over their group; don't copy them. Source: arXiv:2305.13245.

    Args:
        query: [..., H_q, L, D]
        key: [..., H, S, D], where H divides H_q.
        value: [..., H, S, D]
        scale: multiplies the scores; 1 / sqrt(D) by default.
        mask: broadcast to [..., H_q, L, S] and added to the scores; or "causal".

    Returns:
        [..., H_q, L, D]

    Raises:
        ValueError: `H_q` is not a multiple of `H` (`kernel_runtime.shapes.heads_per_kv_head` checks this);
            the mask is causal and `L` is larger than `S`; or `mask` is a string other than "causal".
    """
    check_mask(mask)
    *batch, H_q, L, D = query.shape
    H, S = key.shape[-3], key.shape[-2]
    num_groups = heads_per_kv_head(H_q, H)
    grouped_query = query.reshape(*batch, H, num_groups, L, D)
    grouped_mask = _mask_by_group(mask, [*batch, H_q, L, S], num_groups, query.dtype)
    output = scaled_dot_product_attention_simple(
        grouped_query, mx.expand_dims(key, -3), mx.expand_dims(value, -3), scale, grouped_mask
    )
    return output.reshape(*batch, H_q, L, D)


def _mask_by_group(mask: Mask, shape: list[int], num_groups: int, dtype: mx.Dtype) -> mx.array | None:
    """Reshape the mask to [..., H, groups, L, S]. A mask shared by all heads is not expanded."""
    *batch, H_q, L, S = shape
    if mask is None:
        return None
    if isinstance(mask, str):
        return causal_mask(L, S, dtype)
    if mask.ndim >= 3 and mask.shape[-3] != 1:
        return mx.broadcast_to(mask, shape).reshape(*batch, H_q // num_groups, num_groups, L, S)
    return mx.expand_dims(mask, -3) if mask.ndim >= 3 else mask


class SimpleMultiHeadAttention:
    """Multi-head attention: each of the `num_heads` heads attends with its own slice of the projections.

    Args:
        hidden_size: E, the width of the input; must be a multiple of num_heads.
        num_heads: H; each head has D = E / H dimensions.
        wq, wk, wv: [H x D, E]
        wo: [E, H x D]

    Raises:
        ValueError: `hidden_size` is not a multiple of `num_heads`. Checked on construction.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, wq: mx.array, wk: mx.array, wv: mx.array, wo: mx.array
    ) -> None:
        if hidden_size % num_heads != 0:
            raise ValueError(f"hidden_size {hidden_size} must be a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        """Project the inputs, attend in each head, join the heads and project the result.

        Args:
            query: [B, L, E]
            key: [B, S, E]
            value: [B, S, E]
            mask: broadcast to [B, H, L, S]

        Returns:
            [B, L, E]

        Raises:
            ValueError: `mask` is a string.
        """
        B, L, E = query.shape
        heads = scaled_dot_product_attention_simple(
            self._split_heads(linear(query, self.wq)),
            self._split_heads(linear(key, self.wk)),
            self._split_heads(linear(value, self.wv)),
            mask=mask,
        )
        return linear(heads.swapaxes(1, 2).reshape(B, L, E), self.wo)

    def _split_heads(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, H, L, D]"""
        B, L, _ = x.shape
        return x.reshape(B, L, self.num_heads, -1).swapaxes(1, 2)
