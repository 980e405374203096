"""Choose an attention kernel by device and shape."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import heads_per_kv_head

from ..ops.attention import Mask, check_mask

READ_BY_STRIDES = (0, 1, 2, 3)
SOURCE = Path(__file__).parent / "cpu" / "flash_attention.cpp"
FLASH_ATTENTION = CpuKernel(SOURCE, strided=READ_BY_STRIDES)
HEAD_DIM_UNIT = 16


def dispatch_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """Compute `scaled_dot_product_attention_grouped` with the fastest kernel for this device and shape.

    If the default device is a GPU, use `flash_attention_gpu` (kernels/gpu_operations.py), provided that
    D is one of HEAD_DIMS (kernels/gpu_sizes.py). Otherwise use `flash_attention_cpu`, provided that D
    is a multiple of HEAD_DIM_UNIT. For any other D, for empty arrays, and if the query does not have four
    axes, call `scaled_dot_product_attention_grouped`.

    Args:
        query: [B, H_q, L, D]
        key, value: [B, H, S, D], where H divides H_q.
        scale: multiplies the scores; 1 / sqrt(D) by default.
        mask: broadcast to [B, H_q, L, S] and added to the scores; or "causal".

    Returns:
        [B, H_q, L, D]

    Raises:
        ValueError: `key` and `value` do not fit `query` or each other; `H_q` is not a multiple of `H`; the
            mask is causal and `L` is larger than `S`; or `mask` is a string other than "causal".
    """
    raise NotImplementedError("week 2 day 5 task 5: dispatch_attention is not written yet")


def flash_attention_cpu(
    query: mx.array, key: mx.array, value: mx.array, scale: float, mask: Mask = None
) -> mx.array:
    """Compute `dispatch_attention` with the CPU kernel, in float32.

    The kernel reads wherever the shapes lead, so `check_shapes` must have checked them, and D.
    """
    check_mask(mask)
    B, H_q, L, D = query.shape
    inputs = [array.astype(mx.float32) for array in (query, key, value)]
    if isinstance(mask, mx.array):
        inputs.append(mx.broadcast_to(mask.astype(mx.float32), (B, H_q, L, key.shape[2])))
    numbers = [scale, isinstance(mask, str), isinstance(mask, mx.array)]
    (output,) = FLASH_ATTENTION(inputs, [(B, L, H_q, D)], [mx.float32], numbers)
    return output.astype(query.dtype).swapaxes(1, 2)


def check_shapes(query: mx.array, key: mx.array, value: mx.array, mask: Mask) -> None:
    """Raise ValueError for shapes that would make a kernel read past an array, and for an invalid mask."""
    fits = query.ndim == key.ndim == 4 and value.shape == key.shape and key.shape[::3] == query.shape[::3]
    if not fits:
        raise ValueError(
            "query must be [B, H_q, L, D], key and value both [B, H, S, D], "
            f"got {query.shape}, {key.shape} and {value.shape}"
        )
    L, S = query.shape[2], key.shape[2]
    check_mask(mask, (*query.shape[:3], S))
    heads_per_kv_head(query.shape[1], key.shape[1])
    if isinstance(mask, str) and L > S:
        raise ValueError(f"a mask of {L} queries needs at least {L} keys, got {S}")
