"""Run a scheduled step on the model, with the caches of day 2.1 for each sequence."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol

import mlx.core as mx

from ..generation.sampler import SamplingParams
from ..model.dense_kv_cache import TinyKvFullCache
from ..model.kv_cache import TinyKvCache
from ..model.qwen3 import Qwen3Model
from ..ops.attention import Attention, Mask
from ..scheduling.scheduler_output import SchedulerOutput
from .sampling_batch import BatchSampler, StepSamples, sampler_of


class Runner(Protocol):
    """The part of the engine that calls the model: it computes steps and holds sequences' state."""

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step. Return the samples of its final entries, by sequence id."""

    def release(self, sequence_id: int) -> None:
        """Free what is held for a finished or aborted sequence, if anything is."""

    def close(self) -> None:
        """Free everything."""


class DenseRunner:
    """Call the model once for each group of entries with the same num_tokens and the same is_final.

    All decoding sequences compute one token, so they share a call. Chunks of prompts are seldom equal in
    length. This class never asks whether a sequence is in prefill.

    Args:
        model: called with one row per entry, [B, n].
        sampler: samples the rows of a call; by default, that of the model's operations.

    Attributes:
        caches: for each sequence computed so far, by id, its caches, one per layer.

    After an error in `run`, the caches hold part of a step, so close the runner.
    """

    def __init__(self, model: Qwen3Model, sampler: BatchSampler | None = None) -> None:
        self.model = model
        self.sampler = sampler_of(model.operations) if sampler is None else sampler
        self.mask_rows = model.operations.mask_rows
        self.caches: dict[int, list[TinyKvFullCache]] = {}

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step, and evaluate all of it before returning. Don't change any sequence.

        Args:
            output: the step to compute.
            params: for each sequence with a final entry, by id. They have a seed unless they are greedy.

        Returns:
            The samples of the final entries, by sequence id.
        """
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.run is not written yet")

    def release(self, sequence_id: int) -> None:
        """Free the caches of a sequence."""
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.release is not written yet")

    def close(self) -> None:
        """Free every cache."""
        for sequence_id in list(self.caches):
            self.release(sequence_id)


class RowKvCaches(TinyKvCache):
    """One layer's caches for several sequences, each of them one row of the batch.

    The rows share the products with the weights, but each attends alone, to its own keys. No row is padded
    to the longest, and nothing is copied.

    Args:
        rows: the cache of each row, with batch size 1.
    """

    def __init__(self, rows: Items[TinyKvFullCache]) -> None:
        self.rows = rows

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Let each row attend with its own cache. Arguments and result are those of `TinyKvCache.attend`."""
        raise NotImplementedError("week 3 day 1 task 4: RowKvCaches.attend is not written yet")

    @property
    def offset(self) -> list[int]:
        return [cache.offset for cache in self.rows]

    @property
    def state(self) -> list[mx.array]:
        return [array for cache in self.rows for array in cache.state]

    def release(self) -> None:
        for cache in self.rows:
            cache.release()
