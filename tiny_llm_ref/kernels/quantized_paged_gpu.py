"""Attention to quantized blocks on a GPU: choose the kernel for each query, as for `paged_attention_gpu`."""

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout, QuantizedBlocks
from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import FLOATS, LANES, Launch, Target, default_target

from ..ops.quantized_blocks import bits_of
from .gpu_operations import FEW_QUERIES, SOURCES
from .gpu_sizes import SIMD_GROUPS, TILE, TILE_ENTRIES
from .paged_gpu import in_order, shares_of, tables_on_gpu

HEAD_DIMS = (32, 64, 96, 128, 256)


def make_quantized_kernel(name: str, *places: str, **shared: str) -> GpuKernel:
    """Make a kernel for queries, quantized blocks, tails, and `places`, which say where its queries are."""
    return GpuKernel(
        name,
        inputs=("query", "key", "value", "tail_key", "tail_value", "block_tables", "tails", *places),
        output="out",
        templates={"T": FLOATS, "D": HEAD_DIMS},
        folder=SOURCES,
        integers=("H_q", "H", "block_size", "longest", "key_bits", "value_bits"),
        reals=("scale",),
        shared=shared,
    )


QUANTIZED_PAGED_DECODE = make_quantized_kernel(
    "quantized_paged_decode",
    "sequences",
    "num_keys",
    maxima=f"{SIMD_GROUPS}",
    totals=f"{SIMD_GROUPS}",
    partial_sums=f"{SIMD_GROUPS} * D",
)
QUANTIZED_PAGED_ATTENTION = make_quantized_kernel(
    "quantized_paged_attention",
    "tiles",
    query_tile=f"{TILE_ENTRIES}",
    tile=f"{TILE_ENTRIES}",
    weight_tile=f"{TILE_ENTRIES}",
)


def quantized_paged_attention_gpu(
    query: mx.array,
    blocks: QuantizedBlocks,
    layout: BlockLayout,
    tails: mx.array,
    scale: float | None = None,
    target: Target | None = None,
) -> mx.array:
    """Compute `quantized_paged_attention_simple` on a GPU. Sums are float32; the result has the query's type.

    The kernels read wherever the arguments point, so these must have been checked. `quantized_paged_decode`
    computes sequences of at most FEW_QUERIES queries, and `quantized_paged_attention` the others.

    Args:
        query, blocks, layout, tails, scale: as for `quantized_paged_attention_simple`; D is one of HEAD_DIMS,
            and the query and both tails have one type.
        target: where to run; by default, what this machine has.

    Raises:
        BuildError, NotImplementedError: the kernel is not available here, as for `GpuKernel`.
    """
    H_q, D = query.shape[1:]
    _, block_size, H, _ = blocks.keys.shape
    scale = D**-0.5 if scale is None else scale
    target = target or default_target()
    numbers = (tuple(np.array(x).tolist()) for x in (layout.query_start_loc, layout.seq_lens))
    shares, order = shares_of(*numbers, FEW_QUERIES, QUANTIZED_PAGED_ATTENTION, TILE, QUANTIZED_PAGED_DECODE)
    tables = tables_on_gpu(layout.block_tables)
    bits = bits_of(blocks.keys.shape[3], D), bits_of(blocks.values.shape[3], D)
    outputs = []
    for share in shares:
        own = query[share.rows]
        own_tails = tails[share.rows].astype(mx.int32)
        launch = Launch(
            inputs=(own, *blocks, tables, own_tails, *share.places),
            shape=own.shape,
            dtype=own.dtype,
            num_groups=(share.num_groups, H_q, 1),
            num_threads=SIMD_GROUPS * LANES,
            template={"T": own.dtype, "D": D},
            integers=(H_q, H, block_size, layout.block_tables.shape[1], *bits),
            reals=(scale,),
        )
        outputs.append(share.compute(target, launch))
    return in_order(outputs, order)
