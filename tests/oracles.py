"""The formulas of week 1 in numpy and float64, written without any code of the course."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.float64]

# Largest share of the largest entry by which a result may differ, after rounding the exact one.
LOW_PRECISION = [
    pytest.param(mx.float16, 3e-3, id="float16"),
    pytest.param(mx.bfloat16, 2e-2, id="bfloat16"),
]


def exact(x: mx.array) -> Array:
    """The same numbers in float64."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def softmax(x: Array, axis: int = -1) -> Array:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def attention(
    query: Array, key: Array, value: Array, scale: float | None = None, mask: Array | float = 0.0
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


def rotate(x: Array, positions: Array, frequencies: Array, traditional: bool = False) -> Array:
    """x [B, L, H, D] turned pair by pair as complex numbers; positions [L] or [B, L]."""
    D = x.shape[-1]
    first = np.arange(0, D, 2) if traditional else np.arange(D // 2)
    second = first + 1 if traditional else first + D // 2
    angles = np.asarray(positions)[..., :, None, None] * frequencies
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    result = np.empty_like(x)
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
