"""A cumulative sum that rounds like MLX's on a Mac's GPU."""

from typing import Any

import mlx.core as mx
import numpy as np

READS = 4
"""Entries that a thread adds one after the other."""
LANES, GROUPS = 32, 32


def scan_like_a_gpu(x: mx.array, *args: Any, **named: Any) -> mx.array:
    """`mx.cumsum` along the last axis in float32, added in the order of MLX's Metal kernel.

    Each thread sums `READS` entries. To those it adds, one after the other, the sums of all earlier rounds,
    of the earlier SIMD groups and of the earlier threads of its group. Each addition rounds, so at the border
    between two threads the sums may grow although the weights are 0, or shrink.
    """
    if x.dtype != mx.float32:
        return x.cumsum(*args, **named)
    values = np.array(x)
    V = values.shape[-1]
    rows = values.reshape(-1, V)
    round_size = READS * LANES * GROUPS
    padded = np.pad(rows, ((0, 0), (0, -V % round_size)))
    threads = padded.reshape(len(rows), -1, GROUPS, LANES, READS).cumsum(-1, dtype=np.float32)
    totals = threads[..., -1]
    earlier_threads = exclusive(totals)
    earlier_groups = exclusive(earlier_threads[..., -1] + totals[..., -1])
    reached, before = np.empty_like(threads), np.zeros((len(rows), 1, 1, 1), np.float32)
    for number in range(threads.shape[1]):
        sums = threads[:, number] + before
        sums = sums + earlier_groups[:, number, :, None, None]
        reached[:, number] = sums + earlier_threads[:, number, ..., None]
        before = reached[:, number, -1:, -1:, -1:]
    return mx.array(reached.reshape(len(rows), -1)[:, :V].reshape(values.shape))


def exclusive(x: np.ndarray) -> np.ndarray:
    """The sum of all earlier entries along the last axis."""
    sums = x.cumsum(-1, dtype=np.float32)
    return np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)
