"""Run a draft model: as `ModelRunner`, but it also returns the distributions that it draws from."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import mlx.core as mx

from ..engine.model_runner import ModelRunner
from ..engine.sampling_batch import SamplingBatch, sampler_of
from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from ..paging.forward_batch import ForwardBatch
from ..scheduling.block_manager import BlockManager, BlockTable
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from .draft_blocks import DraftBlocks
from .rejection import probabilities

STREAM = 0x5DEECE66D
"""Changes a seed, so that a draft and the token that may replace it are drawn independently."""


@dataclass(frozen=True)
class Drawn:
    """A draft for each final entry, by sequence id, and its distribution [V] unless the request is greedy."""

    token_ids: Mapping[int, int]
    probs: Mapping[int, mx.array]


def note_on_context(model: Qwen3Model, max_seq_len: int) -> str | None:
    """Say from which length on requests get no drafts; None if the draft model supports `max_seq_len`."""
    context: int = model.config.max_position_embeddings
    if context >= max_seq_len:
        return None
    return f"requests of more than {context} tokens get no drafts: the draft model supports no more"


class DraftRunner(ModelRunner):
    """Draw drafts with a smaller model.

    Its layers have a pool of their own with the same blocks: a block of the block manager has its place in
    both pools. So one block table serves both models, and a sequence's reservation covers both. A block that
    the engine's model has filled may lack the keys and values of this model, so it may store them in blocks
    that are shared.

    Args:
        model: the smaller model.
        blocks: the scheduler's block manager.

    Attributes:
        context: largest number of tokens that the smaller model supports.
    """

    def __init__(self, model: Qwen3Model, blocks: BlockManager) -> None:
        super().__init__(model, blocks, sampler=self._sample)
        self.context: int = model.config.max_position_embeddings
        self._sampler = sampler_of(model.operations)
        self._stored = DraftBlocks(blocks)
        self._params: dict[int, SamplingParams] = {}
        self._probs: mx.array | None = None

    def num_stored(self, sequence: Sequence) -> int:
        """Number of a sequence's leading tokens whose keys and values are stored in its blocks.

        It may be fewer than the engine's model has stored: drafts rest at times, and then a block is filled
        without this model. Rejected drafts don't count.
        """
        return self._stored.num_stored(sequence)

    def draw(self, entries: Items[ScheduledTokens], params: Mapping[int, SamplingParams]) -> Drawn:
        """Compute some entries, and draw a draft after each final one.

        Args:
            entries: in any number. Skip those without tokens, and those of a sequence beyond the `context`,
                which gets no drafts.
            params: for each sequence with a final entry, by id.
        """
        fitting = [entry for entry in entries if entry.is_final or entry.sequence.num_tokens <= self.context]
        step = SchedulerOutput(tuple([entry for entry in fitting if entry.num_tokens]))
        for id in step.final_ids - self._params.keys():
            self._params[id] = replace(params[id], seed=(params[id].seed or 0) ^ STREAM, logprobs=None)
        self._probs = None
        token_ids = self.run(step, self._params).token_ids
        for entry in step.entries:
            self._stored.note(entry)
        if self._probs is None:
            return Drawn(token_ids, {})
        rows = zip(step.final, self._probs, strict=True)
        return Drawn(
            token_ids,
            {entry.sequence.id: row for entry, row in rows if self._params[entry.sequence.id].temperature},
        )

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._params.pop(sequence_id, None)
        self._stored.forget(sequence_id)

    def batch_of(self, output: SchedulerOutput) -> ForwardBatch:
        """Flatten a step. Every key and value is stored, in shared blocks too."""
        tables = {
            entry.sequence.id: BlockTable(self.blocks.tables[entry.sequence.id].block_ids)
            for entry in output.entries
        }
        return ForwardBatch.of(output, tables, self.pool)

    def _sample(self, logits: mx.array, batch: SamplingBatch) -> mx.array:
        if not batch.is_greedy:
            self._probs = probabilities(logits, batch)
        return self._sampler(logits, batch)
