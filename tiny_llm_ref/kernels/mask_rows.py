"""Forbidden tokens masked by a C++ function, in the rows of some requests."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import shaped

BITS_PER_WORD = 32
MASK_ROWS = CpuKernel(Path(__file__).parent / "cpu" / "mask_rows.cpp", is_in_place=True)


@shaped(logits="[B, V]", rows="[R] integer", bits="[R, W] uint32")
def mask_rows(logits: mx.array, rows: mx.array, bits: mx.array) -> mx.array:
    """Set the logits of forbidden tokens to -inf, in the given rows only; CPU only.

    Args:
        logits: [B, V]
        rows: [R], the numbers of the rows, each once. That is not checked, since it would wait for them.
        bits: [R, W], uint32, the mask of each of these rows; 32 x W is at least V.

    Returns:
        [B, V], float32.

    Raises:
        ValueError: the shapes or types do not fit, or `bits` has fewer bits than there are tokens.
    """
    V, W = logits.shape[1], bits.shape[1]
    if BITS_PER_WORD * W < V:
        raise ValueError(f"bits must have {-(-V // BITS_PER_WORD)} words for {V} tokens, got {W}")
    floats = logits.astype(mx.float32)
    return MASK_ROWS([floats, rows.astype(mx.int32), bits], [logits.shape], [mx.float32])[0]
