"""The product with packed weights on a GPU's matrix units: given, not asked for on any day."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import LANES, Launch, Target, default_target, has_bfloat16
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels.gpu_operations import CODE_BITS
from tiny_llm.kernels.gpu_sizes import ceil
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.ops.quantize import QuantizedWeights

TILE = 64  # rows and columns of a group, and inputs that it brings into shared memory at a time
STRIDE = TILE + 8  # distance of a tile's rows
SIMD_GROUPS = 4  # of a group
SHORT_FLOATS = (mx.float16, mx.bfloat16)

TILED_MATMUL = GpuKernel(
    "tiled_matmul",
    inputs=("x", "weights", "scales", "biases"),
    output="out",
    templates={"T": SHORT_FLOATS, "bits": CODE_BITS},
    folder=Path(__file__).parent,
    integers=("M", "N", "K", "group_size"),
    shared={"memory": f"{TILE * STRIDE}"},
)


def tiled_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """`quantized_matmul` on the matrix units of a GPU where there are many rows and types of 16 bits.

    Each weight is rounded to the type of the result before it is multiplied, as in MLX's own product. Sums
    are float32. A row's bits don't depend on how many rows the kernel has. Everything else is left to
    `quantized_matmul`.

    Args:
        x: [..., in]
        weights: of shape (out, in).

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        ValueError: `x` has another number of inputs.
    """
    num_rows = x.size // max(x.shape[-1], 1)
    fits = (
        x.shape[-1] == weights.shape[1]
        and weights.bits in CODE_BITS
        and has_matrix_units(mx.result_type(x, weights.scales))
        and num_rows > gpu_operations.FEW_ROWS
        and mx.default_device() == mx.gpu
    )
    return multiply_tiles(x, weights) if fits else quantized_matmul(x, weights)


def has_matrix_units(dtype: mx.Dtype) -> bool:
    """Whether the matrix units of this machine's GPU multiply arrays of a type."""
    return dtype in SHORT_FLOATS and (dtype != mx.bfloat16 or has_bfloat16())


def multiply_tiles(x: mx.array, weights: QuantizedWeights, target: Target | None = None) -> mx.array:
    """[..., in] times packed weights by `TILED_MATMUL`: [..., out]. x must fit, and not be empty."""
    N, K = weights.shape
    M = x.size // K
    dtype = mx.result_type(x, weights.scales)
    launch = Launch(
        inputs=(
            x.reshape(M, K).astype(dtype),
            weights.weight,
            weights.scales.astype(dtype),
            weights.biases.astype(dtype),
        ),
        shape=(M, N),
        dtype=dtype,
        num_groups=(ceil(N, TILE), ceil(M, TILE), 1),
        num_threads=SIMD_GROUPS * LANES,
        template={"T": dtype, "bits": weights.bits},
        integers=(M, N, K, weights.group_size),
    )
    return TILED_MATMUL(target or default_target(), launch).reshape(*x.shape[:-1], N)
