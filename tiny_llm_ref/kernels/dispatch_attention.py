"""Attention by kernels: which one, by device and shape."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import heads_per_kv_head

from ..ops.attention import Attention, Mask, check_mask, scaled_dot_product_attention_grouped
from .given.gpu_operations import flash_attention_gpu
from .given.gpu_sizes import HEAD_DIMS

READ_BY_STRIDES = (0, 1, 2, 3)
SOURCE = Path(__file__).parent / "cpu" / "flash_attention.cpp"
FLASH_ATTENTION = CpuKernel(SOURCE, strided=READ_BY_STRIDES)
HEAD_DIM_UNIT = 16


def dispatch_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """`scaled_dot_product_attention_grouped` by the fastest means there is for this device and shape.

    `flash_attention_gpu` if the default device is a GPU and D is one of HEAD_DIMS; `flash_attention_cpu` if
    not and D is a multiple of 16. All else is left to `scaled_dot_product_attention_grouped`: other D, empty
    arrays, and any number of axes but four.

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
    D = query.shape[-1]
    scale = D**-0.5 if scale is None else scale
    is_on_gpu = mx.default_device() == mx.gpu
    has_kernel = D in HEAD_DIMS if is_on_gpu else D % HEAD_DIM_UNIT == 0
    if query.ndim != 4 or not has_kernel or query.size == 0 or key.size == 0:
        return scaled_dot_product_attention_grouped(query, key, value, scale, mask)
    check_shapes(query, key, value, mask)
    attend = flash_attention_gpu if is_on_gpu else flash_attention_cpu
    return attend(query, key, value, scale, mask)


def flash_attention_cpu(
    query: mx.array, key: mx.array, value: mx.array, scale: float, mask: Mask = None
) -> mx.array:
    """`dispatch_attention` by the CPU kernel, in float32; D is a multiple of 16 and all shapes are right."""
    B, H_q, L, D = query.shape
    return _flash_attention(query, key, value, scale, mask, (B, L, H_q, D)).swapaxes(1, 2)


def flash_attention_merged(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """`flash_attention_cpu` with its heads side by side, as a projection takes them: [B, L, H_q x D]."""
    B, H_q, L, D = query.shape
    scale = D**-0.5 if scale is None else scale
    return _flash_attention(query, key, value, scale, mask, (B, L, H_q * D))


def can_merge(attention: Attention, head_dim: int) -> bool:
    """Whether `flash_attention_merged` does what this attention does: on the CPU alone."""
    return mx.default_device() != mx.gpu and attention is dispatch_attention and head_dim % HEAD_DIM_UNIT == 0


def _flash_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float, mask: Mask, shape: tuple[int, ...]
) -> mx.array:
    """The kernel's output [B, L, H_q, D] in the shape it is given."""
    check_mask(mask)
    B, H_q, L, _ = query.shape
    S = key.shape[2]
    inputs = [array.astype(mx.float32) for array in (query, key, value)]
    if isinstance(mask, mx.array):
        inputs.append(mx.broadcast_to(mask.astype(mx.float32), (B, H_q, L, S)))
    numbers = [scale, isinstance(mask, str), isinstance(mask, mx.array)]
    (output,) = FLASH_ATTENTION(inputs, [shape], [mx.float32], numbers)
    return output.astype(query.dtype)


def check_shapes(query: mx.array, key: mx.array, value: mx.array, mask: Mask) -> None:
    """ValueError for shapes that the kernels would read past, and for a mask that is no mask."""
    check_mask(mask)
    B, H_q, L, D = query.shape
    if key.ndim != 4 or value.shape != key.shape or (key.shape[0], key.shape[3]) != (B, D):
        raise ValueError(
            f"a query {query.shape} needs key and value [{B}, H, S, {D}], got {key.shape} and {value.shape}"
        )
    H, S = key.shape[1], key.shape[2]
    heads_per_kv_head(H_q, H)
    if isinstance(mask, str) and L > S:
        raise ValueError(f"a mask of {L} queries needs at least {L} keys, got {S}")
