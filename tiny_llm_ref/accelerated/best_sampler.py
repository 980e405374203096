"""The fastest sampler that works on this machine."""

from functools import cache

import mlx.core as mx
import numpy as np

from kernel_runtime.native import kernels_mode, notice
from kernel_runtime.self_check import judge

from ..engine.batch_sampler import sample_batch
from ..engine.sampling_batch import BatchSampler, SamplingBatch, sample_one_by_one
from ..generation.sampler import SamplingParams
from .sample_rows import sample_rows


def sample_natively(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Do what `sample_batch` does, with a C++ function; CPU only."""
    of_rows = batch.temperature, batch.top_p, batch.top_k, batch.log_min_p, batch.uniform
    return sample_rows(logits, np.stack(of_rows, axis=-1, dtype=np.float64).ravel().tolist())


def best_sampler() -> BatchSampler:
    """Sample one row at a time until `sample_batch` is right; then use it, or the C++ kernel on a CPU."""
    return _sampler(str(mx.default_device()), kernels_mode())


@cache
def _sampler(device: str, mode: str) -> BatchSampler:
    logits = mx.log(mx.array([[0.1, 0.2, 0.4, 0.3]] * 5))
    params = (
        SamplingParams(),
        SamplingParams(1),
        SamplingParams(1),
        SamplingParams(1, top_k=2),
        SamplingParams(1, 0.6),
    )
    numbers = np.array([0.9, 0.05, 0.8, 0.1, 0.9]) * 2**64
    batch = SamplingBatch(params, numbers.astype(np.uint64))

    def expected() -> mx.array:
        return mx.array([2, 0, 3, 2, 3])

    try:
        tokens = sample_batch(logits, batch).tolist()
    except NotImplementedError:
        return sample_one_by_one
    except Exception as error:  # a learner's mistake in a part that the engine can do without
        notice(f"sample_batch fails, so rows are sampled one at a time: {type(error).__name__}: {error}")
        return sample_one_by_one
    if tokens != expected().tolist():
        notice("sample_batch draws wrong tokens, so rows are sampled one at a time")
        return sample_one_by_one
    if device != str(mx.Device(mx.cpu)) or mode in ("mlx", "off"):
        return sample_batch
    verdict = judge("sample_rows", lambda: sample_natively(logits, batch), expected)
    return sample_natively if verdict == "right" else sample_batch
