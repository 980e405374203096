"""Small operations on a GPU in one dispatch each; only the norm is MLX's own.

`fused_operations.py`, which calls these, has checked the shapes.
"""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, GpuKernel, numbers
from kernel_runtime.launch import FLOATS, LANES, Launch, Target, default_target
from tiny_llm.kernels.gpu_sizes import SIMD_GROUPS, ceil

FOLDER = Path(__file__).parent
SPLIT_HEADS = GpuKernel(
    "split_heads",
    inputs=("product", "cos", "sin", "query_weight", "key_weight", "first"),
    output="out",
    templates={"T": FLOATS},
    folder=FOLDER,
    integers=("B", "L", "H_q", "H", "D", "has_norms", "are_neighbours"),
    reals=("eps",),
)
SWIGLU = GpuKernel(
    "swiglu",
    inputs=("gate", "up"),
    output="out",
    templates={"T": FLOATS},
    folder=FOLDER,
    integers=("size", "distance", "start", "count"),
)


def split_heads_gpu(
    product: mx.array,
    num_heads: int,
    num_kv_heads: int,
    tables: tuple[mx.array, mx.array],
    norms: tuple[mx.array, mx.array, float] | None,
    first_positions: Sequence[int],
    traditional: bool = False,
    target: Target | None = None,
) -> list[mx.array]:
    """`split_heads` on a GPU.

    Args:
        product, num_heads, num_kv_heads, tables, norms, first_positions, traditional: as for `split_heads`.
        target: where to run; what this machine has unless given.

    Returns:
        query [B, H_q, L, D], key and value [B, H, L, D], in the type of the product.
    """
    B, L, width = product.shape
    D = width // (num_heads + 2 * num_kv_heads)
    cos, sin = tables
    query_weight, key_weight, eps = norms or (cos, sin, 0.0)
    sizes = [(heads * B * L * D, (B, heads, L, D)) for heads in (num_heads, num_kv_heads, num_kv_heads)]
    if product.size == 0:
        return [mx.zeros(shape, product.dtype) for _, shape in sizes]
    weights = [weight.astype(mx.float32) for weight in (query_weight, key_weight)]
    rows = tuple(first_positions) * (B // len(first_positions))
    launch = Launch(
        inputs=(product, cos, sin, *weights, numbers(rows, mx.int32, SMALLEST_BUFFER)),
        shape=(product.size,),
        dtype=product.dtype,
        num_groups=(num_heads + 2 * num_kv_heads, B * L, 1),
        num_threads=LANES,
        template={"T": product.dtype},
        integers=(B, L, num_heads, num_kv_heads, D, int(norms is not None), int(traditional)),
        reals=(eps,),
    )
    heads = SPLIT_HEADS(target or default_target(), launch)
    starts = [0, sizes[0][0], sizes[0][0] + sizes[1][0]]
    return [
        heads[start : start + size].reshape(shape) for start, (size, shape) in zip(starts, sizes, strict=True)
    ]


def swiglu_gpu(gate: mx.array, up: mx.array, target: Target | None = None) -> mx.array:
    """silu(gate) * up on a GPU, elementwise, in the type of gate."""
    size = gate.shape[-1]
    return launch_swiglu(gate, up.astype(gate.dtype), gate.shape, (size, 0), target)


def swiglu_halves_gpu(product: mx.array, target: Target | None = None) -> mx.array:
    """`swiglu_gpu` of the first and the second half of one product, [..., 2 x I] -> [..., I]."""
    *leading, both = product.shape
    return launch_swiglu(product, product, (*leading, both // 2), (both, both // 2), target)


def launch_swiglu(
    gate: mx.array, up: mx.array, shape: tuple[int, ...], places: tuple[int, int], target: Target | None
) -> mx.array:
    """A thread for each entry of the output; `places` are the distance of rows and where `up` starts."""
    if gate.size == 0 or shape[-1] == 0:
        return mx.zeros(shape, gate.dtype)
    count = gate.size // places[0] * shape[-1]
    num_threads = SIMD_GROUPS * LANES
    launch = Launch(
        inputs=(gate, up),
        shape=shape,
        dtype=gate.dtype,
        num_groups=(ceil(count, num_threads), 1, 1),
        num_threads=num_threads,
        template={"T": gate.dtype},
        integers=(shape[-1], *places, count),
    )
    return SWIGLU(target or default_target(), launch)
