"""Forbidden tokens masked by a C++ function, in the rows of some requests."""

from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel

BITS_PER_WORD = 32
MASK_ROWS = CpuKernel(Path(__file__).parent.parent / "cpu" / "mask_rows.cpp", is_in_place=True)


def mask_rows(logits: mx.array, rows: mx.array, bits: mx.array) -> mx.array:
    """Set the logits of forbidden tokens to -inf, in the given rows only; CPU only.

    Args:
        logits: [B, V]
        rows: [R], the numbers of the rows, each once.
        bits: [R, W], uint32, the mask of each of these rows; 32 x W is at least V.

    Returns:
        [B, V], float32.
    """
    floats = logits.astype(mx.float32)
    return MASK_ROWS([floats, rows.astype(mx.int32), bits], [logits.shape], [mx.float32])[0]
