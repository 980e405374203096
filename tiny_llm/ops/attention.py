"""Scaled dot-product attention, straight from the formula. Source: arXiv:1706.03762, section 3.2."""

from collections.abc import Sequence
from typing import Literal, Protocol

import mlx.core as mx

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
    raise NotImplementedError("week 1 day 1 task 2: scaled_dot_product_attention_simple is not written yet")


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
    raise NotImplementedError("week 1 day 3 task 1: causal_mask is not written yet")


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
    raise NotImplementedError("week 1 day 3 task 2: scaled_dot_product_attention_grouped is not written yet")


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
        raise NotImplementedError("week 1 day 1 task 3: SimpleMultiHeadAttention.__init__ is not written yet")

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
        raise NotImplementedError("week 1 day 1 task 3: SimpleMultiHeadAttention.__call__ is not written yet")
