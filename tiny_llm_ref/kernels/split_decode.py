"""Decode with long contexts on a GPU: attend to the keys in splits, each read once, and merge the results."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, GpuKernel, numbers
from kernel_runtime.launch import FLOATS, LANES, Launch, Target
from kernel_runtime.shapes import heads_per_kv_head

from .gpu_sizes import HEAD_DIMS, SIMD_GROUPS, ceil

FOLDER = Path(__file__).parent
SPLIT = 256
"""Keys per split, the same for every query, so that a row's result doesn't depend on longer ones."""
SPLIT_DECODE = GpuKernel(
    "split_decode",
    inputs=("query", "key", "value", "block_tables", "sequences", "num_keys"),
    output="partials",
    templates={"T": FLOATS, "D": HEAD_DIMS},
    folder=FOLDER,
    integers=("H_q", "H", "block_size", "longest", "num_splits"),
    reals=("scale",),
    shared={"maxima": f"{SIMD_GROUPS}", "totals": f"{SIMD_GROUPS}", "partial_sums": f"{SIMD_GROUPS} * D"},
    strided=("key", "value"),
)
MERGE_SPLITS = GpuKernel(
    "merge_splits",
    inputs=("partials",),
    output="out",
    templates={"T": FLOATS, "D": HEAD_DIMS},
    folder=FOLDER,
    integers=("num_splits",),
)


def num_splits(longest: int) -> int:
    """Number of splits for a batch whose longest context has `longest` keys; 1 if splits don't pay."""
    return ceil(longest, SPLIT) if longest > 2 * SPLIT else 1


def split_decode(target: Target, whole: Launch, num_splits: int) -> mx.array:
    """Compute what `paged_decode` does with more groups, reading each key and value only once.

    The kernel reads wherever the launch points, so that must have been checked.

    Args:
        target: where to run.
        whole: the launch of `paged_decode`.
        num_splits: number of splits of the longest context.
    """
    n, H_q, D = whole.shape
    H = whole.integers[1]
    groups_per_key_head = ceil(heads_per_kv_head(H_q, H), 4 if D > 128 else 8)
    partials = SPLIT_DECODE(
        target,
        Launch(
            inputs=whole.inputs,
            shape=(n, H_q, num_splits, D + 2),
            dtype=mx.float32,
            num_groups=(n, H * groups_per_key_head, num_splits),
            num_threads=SIMD_GROUPS * LANES,
            template=whole.template,
            integers=(*whole.integers, num_splits),
            reals=whole.reals,
        ),
    )
    merge = Launch(
        inputs=(partials,),
        shape=whole.shape,
        dtype=whole.dtype,
        num_groups=(n * H_q, 1, 1),
        num_threads=LANES * ceil(D, LANES),
        template=whole.template,
        integers=(num_splits,),
    )
    return MERGE_SPLITS(target, merge)


def split_dense_decode(
    target: Target, query: mx.array, key: mx.array, value: mx.array, scale: float
) -> mx.array:
    """Attend with single queries to all keys of their rows. Each row of the cache is one block of S keys.

    Args:
        target: where to run.
        query: [..., H_q, 1, D], with B rows in all.
        key, value: [B, H, S, D], read where they lie.
        scale: multiplies the scores.

    Returns:
        The shape of the query.
    """
    B, H, S, D = key.shape
    H_q = query.shape[-3]
    rows = numbers(tuple(range(B)), mx.int32, SMALLEST_BUFFER)
    num_keys = numbers((S,) * B, mx.int32, SMALLEST_BUFFER)
    whole = Launch(
        inputs=(query.reshape(B, H_q, D), key.swapaxes(1, 2), value.swapaxes(1, 2), rows, rows, num_keys),
        shape=(B, H_q, D),
        dtype=query.dtype,
        num_groups=(B, H_q, 1),
        num_threads=SIMD_GROUPS * LANES,
        template={"T": query.dtype, "D": D},
        integers=(H_q, H, S, 1),
        reals=(scale,),
    )
    return split_decode(target, whole, num_splits(S)).reshape(query.shape)
