"""Attention of many queries on a GPU's matrix units: given, not asked for on any day."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, GpuKernel, numbers
from kernel_runtime.launch import LANES, Launch, Target, default_target
from kernel_runtime.native import is_invariant
from kernel_runtime.paged_check import checked, unchecked
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels.dispatch_attention import check_shapes, dispatch_attention
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention
from tiny_llm.kernels.gpu_sizes import ceil
from tiny_llm.kernels.paged_gpu import paged_attention_gpu
from tiny_llm.ops.attention import Mask

from .tiled_matmul import SHORT_FLOATS, SIMD_GROUPS, has_matrix_units

QUERIES = 64  # of a group
HEAD_DIMS = (64, 128)

TILED_ATTENTION = GpuKernel(
    "tiled_attention",
    inputs=("query", "key", "value", "block_tables", "tiles"),
    output="out",
    templates={"T": SHORT_FLOATS, "D": HEAD_DIMS},
    folder=Path(__file__).parent,
    integers=(
        *("heads_per_key_head", "block_size", "longest", "query_stride", "query_head"),
        *("head_axis", "more_keys"),
    ),
    reals=("scale",),
    shared={"memory": f"{QUERIES} * (D + 8)", "score_memory": f"{QUERIES * 40}"},
    shared_types={"memory": "T"},
    strided=("key", "value"),
)


def tiled_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """`dispatch_attention` on the matrix units of a GPU where there are many queries and types of 16 bits.

    Each weight is rounded to the type of the result before it is multiplied; their sum is that of the
    rounded ones. All sums are float32. Everything else is left to `dispatch_attention`: other heads than
    HEAD_DIMS and masks that are arrays. With TINY_LLM_INVARIANT so is all of it, since a row's bits must not
    depend on the kind of the mask then.

    Args:
        query: [B, H_q, L, D]
        key, value: [B, H, S, D], H a divisor of H_q.
        scale: factor of the scores, 1 / sqrt(D) unless given.
        mask: broadcast to [B, H_q, L, S] and added; or "causal".

    Returns:
        [B, H_q, L, D]

    Raises:
        ValueError: `key` and `value` do not fit `query` or each other; `H_q` is not a multiple of `H`; the
            mask is causal and `L` larger than `S`; or the `mask` is another string than "causal".
    """
    fits = (
        can_multiply(query, key, value)
        and query.ndim == 4
        and query.shape[-2] > gpu_operations.FEW_QUERIES
        and not isinstance(mask, mx.array)
        and query.size > 0
        and key.size > 0
    )
    if not fits:
        return dispatch_attention(query, key, value, scale, mask)
    check_shapes(query, key, value, mask)
    return attend_tiles(query, key, value, scale, is_causal=mask is not None)


def attend_tiles(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    is_causal: bool = False,
    target: Target | None = None,
) -> mx.array:
    """[B, H_q, L, D] by `TILED_ATTENTION`; a row of a dense cache is a block, read where it lies.

    The kernel trusts the shapes: `check_shapes` must have checked them.
    """
    B, H_q, L, D = query.shape
    _, H, S, _ = key.shape
    tiles = [
        number
        for row in range(B)
        for first in range(0, L, QUERIES)
        for number in (
            row,
            row * H_q * L + first,
            min(QUERIES, L - first),
            S - L + first + 1 if is_causal else S,
        )
    ]
    launch = Launch(
        inputs=(
            query,
            key,
            value,
            numbers(tuple(range(B)), mx.int32, SMALLEST_BUFFER),
            numbers(tuple(tiles), mx.int32, SMALLEST_BUFFER),
        ),
        shape=query.shape,
        dtype=query.dtype,
        num_groups=(B * ceil(L, QUERIES), H_q, 1),
        num_threads=SIMD_GROUPS * LANES,
        template={"T": query.dtype, "D": D},
        integers=(H_q // H, S, 1, D, L * D, 1, int(is_causal)),
        reals=(D**-0.5 if scale is None else scale,),
    )
    return TILED_ATTENTION(target or default_target(), launch)


@checked
def tiled_paged_attention(
    query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, scale: float | None = None
) -> mx.array:
    """`dispatch_paged_attention` with chunks on the matrix units of a GPU, as for `tiled_attention`.

    Arguments, result and ValueError are those of `paged_attention_simple`.
    """
    if can_multiply(query, keys, values):
        return paged_attention_gpu(query, keys, values, layout, scale, many=attend_paged_tiles, tile=QUERIES)
    return unchecked(dispatch_paged_attention)(query, keys, values, layout, scale)


def attend_paged_tiles(target: Target, whole: Launch) -> mx.array:
    """What `paged_attention` computes, by `TILED_ATTENTION`.

    Args:
        target: where to run.
        whole: the launch of `paged_attention`, with tiles of up to QUERIES queries.
    """
    H_q, H, block_size, longest = whole.integers
    D = whole.shape[-1]
    integers = (H_q // H, block_size, longest, H_q * D, D, 2, 1)
    return TILED_ATTENTION(target, replace(whole, num_threads=SIMD_GROUPS * LANES, integers=integers))


def can_multiply(query: mx.array, key: mx.array, value: mx.array) -> bool:
    """Whether matrix units may multiply heads of this dimension and type."""
    return (
        mx.default_device() == mx.gpu
        and not is_invariant()
        and query.shape[-1] in HEAD_DIMS
        and query.dtype == key.dtype == value.dtype
        and has_matrix_units(query.dtype)
    )
