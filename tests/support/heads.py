"""Attention with many heads in numpy, head by head, and what known mistakes would give."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.support.oracles import Array, Mistakes, attention


def split_heads(x: Array, num_heads: int) -> Array:
    """[B, L, E] -> [B, H, L, D], each head its own slice."""
    D = x.shape[-1] // num_heads
    return np.stack([x[..., h * D : (h + 1) * D] for h in range(num_heads)], axis=1)


def join_heads(heads: Array) -> Array:
    """[B, H, L, D] -> [B, L, E], side by side."""
    return np.concatenate([heads[:, h] for h in range(heads.shape[1])], axis=-1)


def many_heads(
    matrices: Sequence[Array],
    xs: Sequence[Array],
    num_heads: int,
    mask: Array | float = 0.0,
    scale: Array | float | None = None,
    split: Callable[[Array, int], Array] = split_heads,
    join: Callable[[Array], Array] = join_heads,
) -> Array:
    """wq, wk, wv and wo; query [B, L, E], key and value [B, S, E] -> [B, L, E]."""
    query, key, value = (split(x @ w.T, num_heads) for x, w in zip(xs, matrices[:3], strict=True))
    masks = np.broadcast_to(mask, (*query.shape[:-1], key.shape[-2]))
    return join(attention(query, key, value, scale, masks)) @ matrices[3].T


def reshape_heads(x: Array, num_heads: int) -> Array:
    """[B, L, E] straight to [B, H, L, D]: positions and heads are mixed."""
    B, L, E = x.shape
    return x.reshape(B, num_heads, L, E // num_heads)


def reshape_back(heads: Array) -> Array:
    """[B, H, L, D] straight to [B, L, E]: mixed as well."""
    B, H, L, D = heads.shape
    return heads.reshape(B, L, H * D)


def split_interleaved(x: Array, num_heads: int) -> Array:
    """[B, L, E] -> [B, H, L, D] with the last axis split as (D, H): each head owns every H-th dimension."""
    B, L, E = x.shape
    return x.reshape(B, L, E // num_heads, num_heads).transpose(0, 3, 1, 2)


def join_interleaved(heads: Array) -> Array:
    """The way back from `split_interleaved`."""
    B, H, L, D = heads.shape
    return heads.transpose(0, 2, 3, 1).reshape(B, L, H * D)


def head_mistakes(
    matrices: Sequence[Array], xs: Sequence[Array], num_heads: int, mask: Array | float = 0.0
) -> Mistakes:
    wq, wk, wv, wo = matrices
    query, key, value = xs
    E = query.shape[-1]

    alike_for_all = np.ndim(mask) < 3 or np.shape(mask)[-3] == 1
    one_head: Mistakes = {"one head over the whole width": lambda: many_heads(matrices, xs, 1, mask)}
    keys_of_query: Mistakes = {
        "many heads with the keys taken from the query input": lambda: many_heads(
            matrices, [query, query, value], num_heads, mask
        )
    }
    of_mask: Mistakes = {
        "many heads without the mask": lambda: many_heads(matrices, xs, num_heads),
        "many heads with the mask in place of the scale: pass it by name (mask=mask)": lambda: many_heads(
            matrices, xs, num_heads, scale=mask
        ),
    }
    return {
        **(of_mask if np.ndim(mask) else {}),
        "many heads reshaped straight to [B, H, L, D]: split the last axis, then swap two": lambda: (
            many_heads(matrices, xs, num_heads, mask, split=reshape_heads)
        ),
        "many heads reshaped straight to [B, H, L, D] and straight back: swap two axes, both ways": lambda: (
            many_heads(matrices, xs, num_heads, mask, split=reshape_heads, join=reshape_back)
        ),
        "many heads joined without swapping the axes back": lambda: many_heads(
            matrices, xs, num_heads, mask, join=reshape_back
        ),
        "many heads that each own every H-th dimension: split the last axis as (H, D), not (D, H)": lambda: (
            many_heads(matrices, xs, num_heads, mask, split=split_interleaved)
        ),
        "many heads of every H-th dimension: split and join the last axis as (H, D), not (D, H)": lambda: (
            many_heads(matrices, xs, num_heads, mask, split=split_interleaved, join=join_interleaved)
        ),
        "many heads with the scale 1 / sqrt(E), not 1 / sqrt(D) of one head": lambda: many_heads(
            matrices, xs, num_heads, mask, E**-0.5
        ),
        **(one_head if alike_for_all else {}),
        "many heads with the values projected by wk": lambda: many_heads(
            [wq, wk, wk, wo], xs, num_heads, mask
        ),
        "many heads with the values taken from the key input": lambda: many_heads(
            matrices, [query, key, key], num_heads, mask
        ),
        **(keys_of_query if query.shape == value.shape else {}),
        "many heads without the output projection": lambda: many_heads(
            [wq, wk, wv, np.eye(E)], xs, num_heads, mask
        ),
        "many heads with wo not transposed": lambda: many_heads([wq, wk, wv, wo.T], xs, num_heads, mask),
    }
