"""Runs what the scheduler chose on the model, with the dense caches of week 2."""

from collections.abc import Mapping
from typing import Protocol

from ..kv_cache import BatchingKvCache, TinyKvFullCache
from ..qwen3 import Qwen3Model
from ..sampler import Sampler
from .scheduled import SchedulerOutput

Samplers = Mapping[int, Sampler]
"""The sampler of each sequence, by its id."""


class Runner(Protocol):
    """What the engine asks of the model's side: the numbers of a step, and to forget a sequence."""

    def run(self, output: SchedulerOutput, samplers: Samplers) -> dict[int, int]:
        """Compute a step; return the token sampled for each final entry, by the id of its sequence."""

    def release(self, sequence_id: int) -> None:
        """Give back what is held for a sequence that is finished or aborted; nothing if nothing is held."""

    def close(self) -> None:
        """Give back everything."""


class DenseRunner:
    """A call of the model for each chunk of a prompt, and one for all that decode.

    A prompt is computed in caches of its own. When its sequence first decodes, they are copied into a slot
    of the batch; a sequence that its first token ends never takes one. Who holds a slot must have an entry
    in every step.

    Args:
        model: called for a chunk as [1, L], for the decodes as [occupied slots, 1].
        max_num_seqs: number of slots.
        max_seq_len: most tokens of a sequence.

    After an error in `run` the caches hold a part of a step: close the runner.
    """

    def __init__(self, model: Qwen3Model, max_num_seqs: int, max_seq_len: int | None = None) -> None:
        self.model = model
        self.prompt_caches: dict[int, list[TinyKvFullCache]] = {}
        self.slots: list[int | None] = [None] * max_num_seqs
        self.cache = [BatchingKvCache(max_num_seqs, max_seq_len) for _ in range(model.num_hidden_layers)]

    def run(self, output: SchedulerOutput, samplers: Samplers) -> dict[int, int]:
        """Compute a step, chunks first; all of it is evaluated before this returns."""
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.run is not written yet")

    def release(self, sequence_id: int) -> None:
        """Give back the caches or the slot of a sequence."""
        raise NotImplementedError("week 3 day 1 task 4: DenseRunner.release is not written yet")

    def close(self) -> None:
        """Give back every cache and slot."""
        for layers in self.prompt_caches.values():
            for layer in layers:
                layer.release()
        for batch in self.cache:
            batch.release()
        self.prompt_caches.clear()
        self.slots = [None] * len(self.slots)
