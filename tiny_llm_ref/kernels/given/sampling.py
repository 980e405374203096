"""All rows of a step sampled by one C++ function, which finds the cuts without sorting the vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from kernel_runtime.cpu_kernel import CpuKernel

SAMPLE_ROWS = CpuKernel(Path(__file__).parent / "sample_rows.cpp")


def sample_rows(logits: mx.array, numbers: Sequence[float]) -> mx.array:
    """The token of each row; CPU only.

    Args:
        logits: [B, V]
        numbers: for each row temperature, top_p, top_k, the logarithm of min_p, and a random number from 0 to
            below 1; infinite where nothing is cut, and -inf for the logarithm.

    Returns:
        [B]
    """
    return SAMPLE_ROWS([logits.astype(mx.float32)], [logits.shape[:1]], [mx.int32], numbers)[0]
