"""Run a scheduled step on the model, with the caches of day 2.1 for each sequence."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import groupby
from operator import attrgetter
from typing import Protocol

import mlx.core as mx

from ..generation.sampler import SamplingParams
from ..model.dense_kv_cache import TinyKvFullCache
from ..model.kv_cache import TinyKvCache
from ..model.qwen3 import Qwen3Model
from ..ops.attention import Attention, Mask
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .sampling_batch import BatchSampler, Sampled, StepSamples, read_samples, sampler_of


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
        sampled: list[Sampled] = []
        likeness = attrgetter("num_tokens", "is_final")
        for (_, is_final), alike in groupby(sorted(output.entries, key=likeness), likeness):
            entries = list(alike)
            logits = self._logits(entries, is_final)
            if is_final:
                sampled.append(Sampled.of(logits[:, -1], entries, params, self.sampler, self.mask_rows))
        states = [layer.state for layers in self.caches.values() for layer in layers]
        mx.eval([each.arrays for each in sampled], states)
        return read_samples(sampled)

    def release(self, sequence_id: int) -> None:
        """Free the caches of a sequence."""
        for layer in self.caches.pop(sequence_id, []):
            layer.release()

    def close(self) -> None:
        """Free every cache."""
        for sequence_id in list(self.caches):
            self.release(sequence_id)

    def _logits(self, entries: Items[ScheduledTokens], is_final: bool) -> mx.array:
        """Logits after the last token of each entry, [B, 1, V]; [B, 0, V] if nothing is sampled."""
        for entry in entries:
            if entry.sequence.id not in self.caches:
                self.caches[entry.sequence.id] = self.model.create_kv_cache()
        layers = zip(*[self.caches[entry.sequence.id] for entry in entries], strict=True)
        return self.model(
            mx.array([entry.token_ids for entry in entries]),
            [entry.start for entry in entries],
            [RowKvCaches(rows) for rows in layers],
            logits_to_keep=int(is_final),
        )


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
        outputs = [
            cache.attend(query[row : row + 1], key[row : row + 1], value[row : row + 1], attention, mask)
            for row, cache in enumerate(self.rows)
        ]
        return mx.concatenate(outputs)

    @property
    def offset(self) -> list[int]:
        return [cache.offset for cache in self.rows]

    @property
    def state(self) -> list[mx.array]:
        return [array for cache in self.rows for array in cache.state]

    def release(self) -> None:
        for cache in self.rows:
            cache.release()
