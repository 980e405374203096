"""Operations on a GPU: which kernel, with how many threads."""

from collections.abc import Collection
from pathlib import Path

import mlx.core as mx

from kernel_runtime.gpu_kernel import SMALLEST_BUFFER, GpuKernel, numbers
from kernel_runtime.launch import FLOATS, LANES, Launch, Target, default_target
from kernel_runtime.native import is_invariant
from kernel_runtime.shapes import heads_per_kv_head

from ..ops.attention import Mask, check_mask
from ..ops.quantize import GROUP_SIZES, QuantizedWeights
from .gpu_sizes import HEAD_DIMS, SIMD_GROUPS, TILE, TILE_ENTRIES, ceil
from .split_decode import num_splits, split_dense_decode

SOURCES = Path(__file__).parent

# --- the product with packed weights ------------------------------------------------------------------------

CODE_BITS = (4, 8)
FEW_ROWS = (
    0 if is_invariant() else 8
)  # for which quantized_matvec reads the weights once, in an order of its own
COLUMNS = 4  # of a group of quantized_matvec, one for each SIMD group


def make_quantized_kernel(name: str, **shared: str) -> GpuKernel:
    """A kernel of x and packed weights."""
    return GpuKernel(
        name,
        inputs=("x", "weights", "scales", "biases"),
        output="out",
        templates={"T": FLOATS, "bits": CODE_BITS, "group_size": GROUP_SIZES},
        folder=SOURCES,
        integers=("M", "N", "K"),
        shared=shared,
    )


QUANTIZED_MATVEC = make_quantized_kernel("quantized_matvec")
QUANTIZED_MATMUL = make_quantized_kernel(
    "quantized_matmul", x_tile=f"{TILE_ENTRIES}", weight_tile=f"{TILE_ENTRIES}"
)


def quantized_matmul_gpu(x: mx.array, weights: QuantizedWeights, target: Target | None = None) -> mx.array:
    """The product with packed weights, transposed, on a GPU; sums are float32.

    Args:
        x: [..., in], float32, float16 or bfloat16. No rows give an empty result, and no kernel runs.
        weights: of shape (out, in), 4 or 8 bits.
        target: where to run; what this machine has unless given.

    Returns:
        [..., out], in the promoted type of x and the scales.

    Raises:
        BuildError, NotImplementedError: there is no such kernel here, as for `GpuKernel`.
        ValueError: `x` does not have the weights' inputs, `K`, or no kernel is made for their `bits`.
    """
    N, K = weights.shape
    if x.shape[-1] != K:
        raise ValueError(f"weights of shape {weights.shape} need x of [..., {K}], got {x.shape}")
    if weights.bits not in CODE_BITS:
        raise ValueError(f"the GPU kernels unpack 4 and 8 bits, not {weights.bits}")
    dtype = mx.result_type(x, weights.scales)
    if x.size == 0:
        return mx.zeros((*x.shape[:-1], N), dtype)
    M = x.size // K
    kernel, num_groups, num_threads = QUANTIZED_MATMUL, (ceil(N, TILE), ceil(M, TILE), 1), SIMD_GROUPS * LANES
    if M <= FEW_ROWS:
        kernel, num_groups, num_threads = QUANTIZED_MATVEC, (ceil(N, COLUMNS), 1, 1), COLUMNS * LANES
    launch = Launch(
        inputs=(
            x.reshape(M, K).astype(dtype),
            weights.weight,
            weights.scales.astype(dtype),
            weights.biases.astype(dtype),
        ),
        shape=(M, N),
        dtype=dtype,
        num_groups=num_groups,
        num_threads=num_threads,
        template={"T": dtype, "bits": weights.bits, "group_size": weights.group_size},
        integers=(M, N, K),
    )
    return kernel(target or default_target(), launch).reshape(*x.shape[:-1], N)


# --- attention ----------------------------------------------------------------------------------------------

FEW_QUERIES = 0 if is_invariant() else 8  # for which flash_decode has a group each, in an order of its own


def make_attention_kernel(name: str, strided: Collection[str] = (), **shared: str) -> GpuKernel:
    """A kernel of queries, keys and values."""
    return GpuKernel(
        name,
        inputs=("query", "key", "value", "mask"),
        output="out",
        templates={"T": FLOATS, "D": HEAD_DIMS},
        folder=SOURCES,
        integers=("H_q", "H", "L", "S", "is_causal", "mask_batch", "mask_head", "mask_query", "mask_key"),
        reals=("scale",),
        shared=shared,
        strided=strided,
    )


FLASH_ATTENTION = make_attention_kernel(
    "flash_attention", query_tile=f"{TILE_ENTRIES}", tile=f"{TILE_ENTRIES}", weight_tile=f"{TILE_ENTRIES}"
)
FLASH_DECODE = make_attention_kernel(
    "flash_decode",
    strided=("key", "value"),
    maxima=f"{SIMD_GROUPS}",
    totals=f"{SIMD_GROUPS}",
    partial_sums=f"{SIMD_GROUPS} * D",
)


def flash_attention_gpu(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
    target: Target | None = None,
) -> mx.array:
    """Grouped-query attention on a GPU, softmax over blocks of keys; sums are float32.

    A single query of a long context is computed by `split_decode`, unless its mask is an array; else up to
    FEW_QUERIES queries by FLASH_DECODE, and more by FLASH_ATTENTION.

    Args:
        query: [..., H_q, L, D], with D one of HEAD_DIMS. No queries give an empty result, and no kernel runs.
        key: [..., H, S, D], H a divisor of H_q.
        value: [..., H, S, D]
        scale: factor of the scores, 1 / sqrt(D) unless given.
        mask: broadcast to [..., H_q, L, S] and added; or "causal".
        target: where to run; what this machine has unless given.

    Returns:
        [..., H_q, L, D], in the type of all three.

    Raises:
        BuildError, NotImplementedError: there is no such kernel here, as for `GpuKernel`.
        ValueError: `key` and `value` do not fit query or each other, in shape or type; `H_q` is not a
            multiple of `H`; the mask is causal and `L` larger than `S`; no kernel is made for heads of `D`;
            or the `mask` is another string than "causal".
    """
    check_mask(mask)
    *batch, H_q, L, D = query.shape
    *key_batch, H, S, key_D = key.shape
    if value.shape != key.shape or (key_batch, key_D) != (batch, D):
        raise ValueError(
            f"query {query.shape} needs key and value alike, {(*batch, H, S, D)}, "
            f"got {key.shape} and {value.shape}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"query, key and value must have one type, got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    heads_per_kv_head(H_q, H)
    if isinstance(mask, str) and L > S:
        raise ValueError(f"a causal mask of {L} queries needs at least {L} keys, got {S}")
    if D not in HEAD_DIMS:
        raise ValueError(f"the GPU kernels have heads of {', '.join(map(str, HEAD_DIMS))}, not {D}")
    if query.size == 0:
        return mx.zeros(query.shape, query.dtype)
    B = query.size // (H_q * L * D)
    key, value = key.reshape(B, H, S, D), value.reshape(B, H, S, D)
    target = target or default_target()
    scale = D**-0.5 if scale is None else scale
    if L == 1 <= FEW_QUERIES and not isinstance(mask, mx.array) and num_splits(S) > 1:
        return split_dense_decode(target, query, key, value, scale)
    added, strides = flat_mask(mask, (*batch, H_q, L, S))
    is_few = L <= FEW_QUERIES
    launch = Launch(
        inputs=(query, key, value, added),
        shape=query.shape,
        dtype=query.dtype,
        num_groups=(L if is_few else ceil(L, TILE), H_q, B),
        num_threads=SIMD_GROUPS * LANES,
        template={"T": query.dtype, "D": D},
        integers=(H_q, H, L, S, int(isinstance(mask, str)), *strides),
        reals=(scale,),
    )
    return (FLASH_DECODE if is_few else FLASH_ATTENTION)(target, launch)


def flat_mask(mask: Mask, shape: tuple[int, ...]) -> tuple[mx.array, tuple[int, int, int, int]]:
    """A mask's entries, and its strides along batch, head, query and key: 0 where it is alike.

    Args:
        mask: as for attention; zeros stand for no array.
        shape: [..., H_q, L, S], to which it is broadcast.

    Raises:
        ValueError: the `mask` cannot be broadcast.
    """
    if mask is None or isinstance(mask, str):
        return numbers((), mx.float32, SMALLEST_BUFFER), (0, 0, 0, 0)
    own = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)
    if len(own) != len(shape) or any(size not in (1, full) for size, full in zip(own, shape, strict=True)):
        raise ValueError(f"a mask of {mask.shape} cannot be broadcast to {shape}")
    heads, rows, columns = own[-3:]
    has_batch = any(size != 1 for size in own[:-3])
    if has_batch:
        mask = mx.broadcast_to(mask, (*shape[:-3], heads, rows, columns))
    strides = (
        heads * rows * columns if has_batch else 0,
        rows * columns if heads > 1 else 0,
        columns if rows > 1 else 0,
        1 if columns > 1 else 0,
    )
    return mask.astype(mx.float32), strides
