"""All rows of a step sampled by one C++ function, which finds the cuts without sorting the vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from kernel_runtime.cpu_kernel import CpuKernel
from kernel_runtime.shapes import shaped
from tiny_llm.engine.sampling_batch import SamplingBatch

NUMBERS_PER_ROW = 5
SAMPLE_ROWS = CpuKernel(Path(__file__).parent / "sample_rows.cpp")


def sample_natively(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Do what `sample_batch` does, with the C++ function."""
    of_rows = batch.temperature, batch.top_p, batch.top_k, batch.log_min_p, batch.uniform
    return sample_rows(logits, np.stack(of_rows, axis=-1, dtype=np.float64).ravel().tolist())


@shaped(logits="[B, V]")
def sample_rows(logits: mx.array, numbers: Sequence[float]) -> mx.array:
    """The token of each row; CPU only.

    Args:
        logits: [B, V]
        numbers: for each row temperature, top_p, top_k, the logarithm of min_p, and a random number from 0 to
            below 1; infinite where nothing is cut, and -inf for the logarithm.

    Returns:
        [B]

    Raises:
        ValueError: `logits` are not [B, V] with at least one token, or `numbers` are not five per row.
    """
    B, V = logits.shape
    if V == 0 or len(numbers) != NUMBERS_PER_ROW * B:
        raise ValueError(
            f"logits must be [B, V] with V of at least 1, and numbers five for each of the B rows, got "
            f"{logits.shape} and {len(numbers)} numbers"
        )
    return SAMPLE_ROWS([logits.astype(mx.float32)], [logits.shape[:1]], [mx.int32], numbers)[0]
