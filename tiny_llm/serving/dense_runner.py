"""Runs what the scheduler chose on the model, each sequence with the caches of day 2.1."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol

import mlx.core as mx

from ..generation.sampler import SamplingParams
from ..model.dense_kv_cache import TinyKvFullCache
from ..model.kv_cache import TinyKvCache
from ..model.qwen3 import Qwen3Model
from ..ops.attention import Attention, Mask
from .given.best_sampler import best_sampler
from .given.sampling import BatchSampler, StepSamples
from .given.scheduler_output import SchedulerOutput


class Runner(Protocol):
    """What the engine asks of the model's side: the numbers of a step, and to forget a sequence."""

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step; return what was sampled for each final entry, by the id of its sequence."""

    def release(self, sequence_id: int) -> None:
        """Give back what is held for a sequence that is finished or aborted; nothing if nothing is held."""

    def close(self) -> None:
        """Give back everything."""


class DenseRunner:
    """A call of the model for all entries that are alike: of as many tokens, and as final.

    All that decode bring one token and share a call; chunks of a prompt seldom find their like. Nothing here
    asks who is in prefill.

    Args:
        model: called with a row for each entry, [B, n].
        sampler: samples the rows of a call; the fastest that works here unless given.

    Attributes:
        caches: those of each sequence that was computed, one a layer, by its id.

    After an error in `run` the caches hold a part of a step: close the runner.
    """

    def __init__(self, model: Qwen3Model, sampler: BatchSampler | None = None) -> None:
        self.model = model
        self.sampler = best_sampler() if sampler is None else sampler
        self.caches: dict[int, list[TinyKvFullCache]] = {}

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step; all of it is evaluated before this returns, and no sequence is changed.

        Args:
            output: what to compute.
            params: of each sequence with a final entry, by its id; with a seed unless greedy.

        Returns:
            What was sampled for each final entry, by the id of its sequence.
        """
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.run is not written yet")

    def release(self, sequence_id: int) -> None:
        """Give back the caches of a sequence."""
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.release is not written yet")

    def close(self) -> None:
        """Give back every cache."""
        for sequence_id in list(self.caches):
            self.release(sequence_id)


class RowKvCaches(TinyKvCache):
    """One layer's caches of several sequences, each of which is a row of the batch.

    The rows share the products with the weights. Each attends alone, to as many keys as it has: no row is
    padded to the longest, and nothing is copied.

    Args:
        rows: the cache of each row, of batch size 1.
    """

    def __init__(self, rows: Items[TinyKvFullCache]) -> None:
        self.rows = rows

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Let each row attend by its own cache; arguments and result as for `TinyKvCache.attend`."""
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
