"""The formulas of week 1 in numpy and float64, written without any code of the course."""

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.float64]

# Largest share of the largest entry by which a result may differ, after rounding the exact one.
LOW_PRECISION = [pytest.param(mx.float16, 3e-3, id="float16"), pytest.param(mx.bfloat16, 2e-2, id="bfloat16")]


def exact(x: mx.array) -> Array:
    """The same numbers in float64."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def softmax(x: Array, axis: int = -1) -> Array:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def attention(
    query: Array, key: Array, value: Array, scale: Array | float | None = None, mask: Array | float = 0.0
) -> Array:
    """softmax(Q K^T x scale + mask) V, with the scale 1 / sqrt(D)."""
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    return softmax(np.einsum("...ld,...sd->...ls", query, key) * factor + mask) @ value


def causal_mask(L: int, S: int) -> Array:
    """Query i stands at position i + S - L and sees the keys up to itself, written entry by entry."""
    mask = np.full((L, S), -np.inf)
    for i in range(L):
        for j in range(S):
            if j <= i + S - L:
                mask[i, j] = 0.0
    return mask


def grouped_attention(
    query: Array, key: Array, value: Array, scale: float | None = None, mask: Array | float = 0.0
) -> Array:
    """[B, H_q, L, D], head by head: query head h looks at key head h // (H_q / H)."""
    B, H_q, L, _ = query.shape
    group_size = H_q // key.shape[1]
    masks = np.broadcast_to(mask, (B, H_q, L, key.shape[2]))
    heads = [
        attention(query[:, h], key[:, h // group_size], value[:, h // group_size], scale, masks[:, h])
        for h in range(H_q)
    ]
    return np.stack(heads, axis=1)


def rope_frequencies(dims: int, base: float) -> Array:
    return np.array([base ** (-2 * pair / dims) for pair in range(dims // 2)])


def turn(first: Array, second: Array, angles: Array) -> tuple[Array, Array]:
    """Pairs turned as complex numbers."""
    turned = (first + 1j * second) * np.exp(1j * angles)
    return turned.real, turned.imag


def rotate(
    x: Array,
    positions: Array,
    frequencies: Array,
    traditional: bool = False,
    turn: Callable[[Array, Array, Array], tuple[Array, Array]] = turn,
) -> Array:
    """x [B, L, H, D] turned pair by pair; positions [L] or [B, L]."""
    D = x.shape[-1]
    first = np.arange(0, D, 2) if traditional else np.arange(D // 2)
    second = first + 1 if traditional else first + D // 2
    angles = np.asarray(positions)[..., :, None, None] * frequencies
    result = np.empty_like(x)
    result[..., first], result[..., second] = turn(x[..., first], x[..., second], angles)
    return result


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# --- known mistakes: what each would give, by what it is ----------------------------------------------------

Mistake = Callable[[], Array]
Mistakes = dict[str, Mistake | tuple[Mistake, ...]]


def softmax_mistakes(x: Array, axis: int) -> Mistakes:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    along_others: Mistakes = {
        f"the softmax along axis {other}": partial(softmax, x, other) for other in others
    }
    return {
        **along_others,
        "the exponentials divided by the sum of the whole array": lambda: exponentials / exponentials.sum(),
        f"the exponentials along axis {axis} divided by the sums along the last axis": lambda: (
            exponentials / exponentials.sum(axis=-1, keepdims=True)
        ),
        "the exponentials of x itself, which overflow: take the largest value off first": lambda: (
            np.exp(x.astype(np.float32)) / np.exp(x.astype(np.float32)).sum(axis=axis, keepdims=True)
        ),
        "the exponentials divided by the largest of them": lambda: (
            exponentials / exponentials.max(axis=axis, keepdims=True)
        ),
        "the softmax with one largest value taken off all rows: take that of each row": lambda: (
            np.exp(less := (x - x.max()).astype(np.float32)) / np.exp(less).sum(axis=axis, keepdims=True)
        ),
        **(keepdims_mistakes(x, axis) if len(set(x.shape)) == 1 else {}),
    }


def keepdims_mistakes(x: Array, axis: int) -> Mistakes:
    """Of a cube, whose sums along an axis line up with another one too."""
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))

    def of_shifted(keeps_sums: bool) -> Array:
        shifted = np.exp(x - x.max(axis=axis))
        return shifted / shifted.sum(axis=axis, keepdims=keeps_sums)

    return {
        "the exponentials divided by sums that line up with another axis: keep the axis in the sum "
        "(keepdims)": lambda: exponentials / exponentials.sum(axis=axis),
        "the exponentials, nothing taken off, divided by sums that line up with another axis: keep the axis "
        "in the sum (keepdims)": lambda: np.exp(x) / np.exp(x).sum(axis=axis),
        "a softmax whose largest values line up with another axis: keep the axis in the maximum "
        "(keepdims)": lambda: of_shifted(True),
        "a softmax whose largest values and sums line up with another axis: keep the axis in both "
        "(keepdims)": lambda: of_shifted(False),
    }


def linear_mistakes(x: Array, w: Array, bias: Array | float = 0.0) -> Mistakes:
    of_square: Mistakes = {"x @ w: the weight is not transposed": lambda: x @ w + bias}
    return {
        **(of_square if w.shape[0] == w.shape[1] else {}),
        "the product without the bias": lambda: x @ w.T,
        "the product minus the bias": lambda: x @ w.T - bias,
    }


def attention_mistakes(
    query: Array, key: Array, value: Array, scale: float | None = None, mask: Array | float = 0.0
) -> Mistakes:
    D, S = query.shape[-1], key.shape[-2]
    factor = D**-0.5 if scale is None else scale

    def scores() -> Array:
        return np.einsum("...ld,...sd->...ls", query, key) * factor

    of_mask: Mistakes = {
        "attention without the mask": lambda: attention(query, key, value, scale),
        "attention with the mask in place of the scale: pass it by name (mask=mask)": lambda: attention(
            query, key, value, mask
        ),
        "attention with the scores multiplied by the mask: add it": lambda: softmax(scores() * mask) @ value,
        "attention with the mask added before the scale": lambda: attention(
            query, key, value, scale, np.multiply(mask, factor)
        ),
        "attention with the masked weights set to 0 after the softmax": lambda: (
            np.where(np.isneginf(mask), 0.0, softmax(scores())) @ value
        ),
        "attention with a mask that counts only where it is -inf": lambda: attention(
            query, key, value, scale, np.where(np.isneginf(mask), -np.inf, 0.0)
        ),
    }
    of_scale: Mistakes = {
        "attention with the scale applied twice": lambda: attention(
            query, key, value, np.square(factor), mask
        ),
        "attention with the scale 1 / sqrt(D), not the one given": lambda: attention(
            query, key, value, None, mask
        ),
    }
    return {
        **(of_mask if np.ndim(mask) else {}),
        "attention with the scale 1 / D, not 1 / sqrt(D)": lambda: attention(query, key, value, 1 / D, mask),
        "attention without the scale": lambda: attention(query, key, value, 1.0, mask),
        **({} if scale is None else of_scale),
        "attention with the scores divided by the scale": lambda: attention(
            query, key, value, np.divide(1.0, factor), mask
        ),
        "attention with the scale 1 / sqrt(S), S the number of keys": lambda: attention(
            query, key, value, S**-0.5, mask
        ),
        "attention with the softmax over the queries": lambda: softmax(scores() + mask, axis=-2) @ value,
        "attention without the softmax": lambda: (scores() + mask) @ value,
        "attention that averages the keys, not the values": lambda: attention(query, key, key, scale, mask),
    }


def hidden_where(is_hidden: npt.NDArray[np.bool_]) -> Array:
    return np.where(is_hidden, -np.inf, 0.0)


def causal_mask_mistakes(L: int, S: int, first: int | None = None) -> dict[str, Array]:
    """Wrong masks of L queries, the first of them at position S - L unless given."""
    query_position = (S - L if first is None else first) + np.arange(L)[:, None]
    key_position = np.arange(S)[None, :]
    return {
        "a mask that hides nothing": np.zeros((L, S)),
        "a mask whose first query stands at position 0, whatever came before": hidden_where(
            key_position > np.arange(L)[:, None]
        ),
        "a mask that hides each query from itself": hidden_where(key_position >= query_position),
        "a mask that lets each query see one key too many": hidden_where(key_position > query_position + 1),
        "a causal mask shifted by one: each query sees what the one before it may see": np.concatenate(
            [causal_mask(L, S)[:1], causal_mask(L, S)[:-1]]
        ),
        "a mask that hides the past and shows what comes after": hidden_where(key_position < query_position),
        "a mask with hidden and seen swapped": hidden_where(key_position <= query_position),
        "a mask of 1 and 0, not of 0 and -inf": np.where(key_position <= query_position, 1.0, 0.0),
        "a mask that lets the new tokens all see each other": hidden_where(
            key_position > query_position.max(initial=0)
        ),
    }


def causal_attention_mistakes(query: Array, key: Array, value: Array, scale: float | None = None) -> Mistakes:
    """Attention under wrong causal masks, the key heads as many as the query heads."""
    L, S = query.shape[-2], key.shape[-2]
    under_masks: Mistakes = {
        f"attention under {name}": partial(attention, query, key, value, scale, mask)
        for name, mask in causal_mask_mistakes(L, S).items()
        if mask.any()  # without one there is a name already
    }
    return {**attention_mistakes(query, key, value, scale, causal_mask(L, S)), **under_masks}


def grouped_attention_mistakes(
    query: Array,
    key: Array,
    value: Array,
    scale: float | None = None,
    mask: Array | float = 0.0,
    is_causal: bool = False,
) -> Mistakes:
    """[B, H_q, L, D]: known mistakes with the heads, the scale or the mask."""
    group_size = query.shape[1] // key.shape[1]
    tiled = [np.tile(x, (1, group_size, 1, 1)) for x in (key, value)]
    repeated = [np.repeat(x, group_size, axis=1) for x in (key, value)]
    first = [np.repeat(x[:, :1], query.shape[1], axis=1) for x in (key, value)]
    if is_causal:
        mask = causal_mask(query.shape[2], key.shape[2])
        others = causal_attention_mistakes(query, repeated[0], repeated[1], scale)
    else:
        others = attention_mistakes(query, repeated[0], repeated[1], scale, mask)
    return {
        "attention with the key heads tiled (0 1 2 0 1 2), not repeated (0 0 1 1 2 2)": lambda: attention(
            query, tiled[0], tiled[1], scale, mask
        ),
        "attention with the values alone tiled (0 1 2 0 1 2)": lambda: attention(
            query, repeated[0], tiled[1], scale, mask
        ),
        "attention of every query head with the first key head": lambda: attention(
            query, first[0], first[1], scale, mask
        ),
        **others,
    }


def rotation_mistakes(
    x: Array, positions: npt.ArrayLike, frequencies: Array, traditional: bool = False
) -> Mistakes:
    where = np.broadcast_to(np.asarray(positions), x.shape[:2])
    H, D = x.shape[2:]

    def swapped(first: Array, second: Array, angles: Array) -> tuple[Array, Array]:
        return turn(first, second, np.pi / 2 - angles)

    def overwritten(first: Array, second: Array, angles: Array) -> tuple[Array, Array]:
        new = turn(first, second, angles)[0]
        return new, second * np.cos(angles) + new * np.sin(angles)

    def joined_otherwise() -> Array:
        pairs = (D // 2, 2) if traditional else (2, D // 2)
        turned = rotate(x, where, frequencies, traditional).reshape(*x.shape[:3], *pairs)
        return turned.swapaxes(-1, -2).reshape(x.shape)

    def by_head() -> Array:
        heads = x.swapaxes(1, 2)
        return rotate(heads, where[:, :1] + np.arange(H), frequencies, traditional).swapaxes(1, 2)

    of_offset: Mistakes = {
        "x rotated as if the offset were the place behind its last vector": lambda: rotate(
            x, where - x.shape[1], frequencies, traditional
        ),
        "x rotated with the offset counted twice": lambda: rotate(
            x, where + where[:, :1], frequencies, traditional
        ),
        "x with every vector rotated by the first position of its row": lambda: rotate(
            x, np.broadcast_to(where[:, :1], where.shape), frequencies, traditional
        ),
    }
    factors = {
        "2 pi: they are in radians a position": 2 * np.pi,
        "180 / pi: cos and sin take radians": 180 / np.pi,
        "pi / 180: they are in radians already": np.pi / 180,
    }
    return {
        **{
            f"x rotated with its angles times {name}": partial(
                rotate, x, where, frequencies * factor, traditional
            )
            for name, factor in factors.items()
        },
        "x rotated with cos and sin swapped": lambda: rotate(x, where, frequencies, traditional, swapped),
        "x rotated with the new first entry of each pair used for the second: keep the old one": lambda: (
            rotate(x, where, frequencies, traditional, overwritten)
        ),
        "x rotated, its pairs then joined in the other pairing": joined_otherwise,
        "x rotated as if its axes were [B, H, L, D]: each head at a position, not each token": by_head,
        "x itself: every vector is taken to be at position 0": lambda: x,
        "x rotated in the other pairing": lambda: rotate(x, where, frequencies, not traditional),
        "x rotated the other way round: the sign of the sine": lambda: rotate(
            x, -where, frequencies, traditional
        ),
        "x rotated without the offset": lambda: rotate(x, where - where[:, :1], frequencies, traditional),
        "x rotated one position too far": lambda: rotate(x, where + 1, frequencies, traditional),
        "x rotated one position too little": lambda: rotate(x, where - 1, frequencies, traditional),
        **(of_offset if where[:, 0].any() else {}),
        "x with every row at the positions of row 0": lambda: rotate(
            x, np.broadcast_to(where[:1], where.shape), frequencies, traditional
        ),
        "x with every row at the positions of the row that is furthest": lambda: rotate(
            x, np.broadcast_to(where[where[:, 0].argmax()], where.shape), frequencies, traditional
        ),
    }


def rms_norm_mistakes(x: Array, weight: Array, eps: float) -> Mistakes:
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    centred = x - x.mean(axis=-1, keepdims=True)
    return {
        "x normalized with eps outside the root": lambda: x / (np.sqrt(mean_square) + eps) * weight,
        "x normalized without eps": lambda: x / np.sqrt(mean_square) * weight,
        "x normalized with eps squared": lambda: rms_norm(x, weight, eps**2),
        "x normalized with eps 1e-6": lambda: rms_norm(x, weight, 1e-6),
        "x divided by its standard deviation: the mean is not taken off in the mean of squares": lambda: (
            x / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight
        ),
        "x with its mean taken off first, a LayerNorm": lambda: rms_norm(centred, weight, eps),
        "x divided by the root of the sum of squares, not of their mean": lambda: (
            x / np.sqrt(mean_square * x.shape[-1] + eps) * weight
        ),
        "x divided by the mean of squares, without the root": lambda: x / (mean_square + eps) * weight,
        "x divided by the mean of its absolute values": lambda: (
            x / (np.abs(x).mean(axis=-1, keepdims=True) + eps) * weight
        ),
        "x normalized over the first axis": lambda: (
            x / np.sqrt((x**2).mean(axis=0, keepdims=True) + eps) * weight
        ),
        "x normalized over all axes together": lambda: x / np.sqrt((x**2).mean() + eps) * weight,
        "x normalized without the weight": lambda: rms_norm(x, np.ones_like(weight), eps),
        "x normalized with the weight 1 + weight": lambda: rms_norm(x, 1 + weight, eps),
        "x times its weight, then normalized": (
            lambda: rms_norm(x * weight, np.ones_like(weight), eps),
            lambda: rms_norm(x * weight, weight, eps),
        ),
    }


def silu_mistakes(x: Array) -> Mistakes:
    return {
        "the sigmoid of x, not x times it": lambda: 1 / (1 + np.exp(-x)),
        "relu(x)": lambda: np.maximum(x, 0),
        "softplus(x)": lambda: np.log1p(np.exp(x)),
        "x times the sigmoid of -x": lambda: x / (1 + np.exp(x)),
    }


def mlp_mistakes(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Mistakes:
    gate, up, down = x @ w_gate.T, x @ w_up.T, w_down.T
    return {
        "the MLP with gate and up swapped": lambda: (silu(up) * gate) @ down,
        "the MLP without silu": lambda: (gate * up) @ down,
        "the MLP with silu of both gate and up": lambda: (silu(gate) * silu(up)) @ down,
        "the MLP with silu of the product": lambda: silu(gate * up) @ down,
        "the MLP with the gate added, not multiplied": lambda: (silu(gate) + up) @ down,
        "the MLP without up": lambda: silu(gate) @ down,
        "the MLP with the sigmoid in place of silu": lambda: (up / (1 + np.exp(-gate))) @ down,
        "the MLP plus x: the residual belongs to the block": lambda: x + (silu(gate) * up) @ down,
    }


def expected_kept(row: Array, top_p: float = 0, top_k: int | None = None, min_p: float = 0) -> list[bool]:
    """The three cuts token by token, from the likeliest to the least likely; of equals, the first stay."""
    probs = np.exp(row)
    kept, reached = [False] * len(row), 0.0
    for rank, token in enumerate(np.argsort(-row, kind="stable")):
        in_top_k = top_k is None or rank < top_k
        in_top_p = top_p in (0, 1) or reached < top_p
        kept[token] = bool(in_top_k and in_top_p and probs[token] >= min_p * probs.max())
        reached += probs[token]
    return kept
