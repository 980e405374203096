"""Runs what the scheduler chose on the model, with the dense caches of week 2."""

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from ..generate import to_logprobs
from ..kv_cache import BatchingKvCache, TinyKvFullCache
from ..qwen3 import Qwen3Model
from ..sampler import Sampler, token_id
from .scheduled import ScheduledTokens, SchedulerOutput

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
        logprobs: dict[int, mx.array] = {}
        for entry in output.entries:
            if entry.is_prefill:
                logprobs[entry.sequence.id] = self._compute_chunk(entry)
        decodes = {entry.sequence.id: entry for entry in output.entries if not entry.is_prefill}
        if decodes:
            logprobs |= self._decode(decodes)
        sampled = {
            entry.sequence.id: samplers[entry.sequence.id](logprobs[entry.sequence.id])
            for entry in output.final
        }
        mx.eval(list(sampled.values()), self._state())
        return {sequence_id: token_id(token) for sequence_id, token in sampled.items()}

    def release(self, sequence_id: int) -> None:
        """Give back the caches or the slot of a sequence."""
        for layer in self.prompt_caches.pop(sequence_id, []):
            layer.release()
        if sequence_id in self.slots:
            slot = self.slots.index(sequence_id)
            for batch in self.cache:
                batch.remove_request(slot)
            self.slots[slot] = None

    def close(self) -> None:
        """Give back every cache and slot."""
        for layers in self.prompt_caches.values():
            for layer in layers:
                layer.release()
        for batch in self.cache:
            batch.release()
        self.prompt_caches.clear()
        self.slots = [None] * len(self.slots)

    def _compute_chunk(self, entry: ScheduledTokens) -> mx.array:
        """Log-probabilities [1, V] after the chunk; only those of a final one are ever computed."""
        if entry.sequence.id not in self.prompt_caches:
            self.prompt_caches[entry.sequence.id] = self.model.create_kv_cache()
        logits = self.model(
            mx.array([entry.token_ids]),
            entry.start,
            self.prompt_caches[entry.sequence.id],
            logits_to_keep=1 if entry.is_final else 0,
        )
        return to_logprobs(logits) if entry.is_final else logits

    def _decode(self, entries: dict[int, ScheduledTokens]) -> dict[int, mx.array]:
        """Log-probabilities [1, V] of each sequence that decodes, by its id."""
        for sequence_id in entries:
            if sequence_id not in self.slots:
                self._move_to_slot(sequence_id)
        ids = [self.slots[slot] for slot in self.cache[0].active_slots]
        rows = [entries[sequence_id] for sequence_id in ids if sequence_id is not None]
        tokens = mx.array([entry.token_ids for entry in rows])
        logprobs = to_logprobs(self.model(tokens, [entry.start for entry in rows], self.cache))
        return {entry.sequence.id: logprobs[row : row + 1] for row, entry in enumerate(rows)}

    def _move_to_slot(self, sequence_id: int) -> None:
        slot = self.slots.index(None)
        self.slots[slot] = sequence_id
        for batch, prefilled in zip(self.cache, self.prompt_caches[sequence_id], strict=True):
            batch.add_request(prefilled, slot)
        mx.eval([batch.state for batch in self.cache])
        for layer in self.prompt_caches.pop(sequence_id):
            layer.release()

    def _state(self) -> list[list[mx.array]]:
        prompts = [layer.state for layers in self.prompt_caches.values() for layer in layers]
        return [*prompts, *(batch.state for batch in self.cache)]
