"""Speculation in the server: where drafts come from, and what became of them."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from tiny_llm.engine.memory import check_memory, pool_bytes
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.model.optional import once_written
from tiny_llm.model.qwen3 import Qwen3Model
from tiny_llm.scheduling.block_manager import BlockManager
from tiny_llm.speculation.adaptive_drafter import AdaptiveDrafter
from tiny_llm.speculation.draft_cost import DraftCost, profiled
from tiny_llm.speculation.draft_length import Acceptance, best_num_drafts
from tiny_llm.speculation.draft_model import DraftModel
from tiny_llm.speculation.draft_runner import note_on_context
from tiny_llm.speculation.drafter import Drafter
from tiny_llm.speculation.lookup_drafter import LookupDrafter

log = logging.getLogger("tiny_llm.server")
SAMPLE = "In the beginning, 12 éclairs ()."


@dataclass
class DrafterFactory:
    """Make the drafter of each engine. It proposes as many drafts as pay; costs are measured only once.

    Until the optional tasks are written that this needs, it always proposes `num_drafts`.

    Args:
        num_drafts: largest number of drafts of a request in a step.
        load_draft: loads the draft model and its tokenizer; None for lookup in the tokens so far.
    """

    num_drafts: int
    load_draft: Callable[[], tuple[Qwen3Model, Tokenizer]] | None = None
    _draft: Qwen3Model | None = field(default=None, init=False)
    _cost: DraftCost | None = field(default=None, init=False)

    def __call__(
        self,
        model: Qwen3Model,
        tokenizer: Tokenizer,
        blocks: BlockManager,
        num_bytes: int = 0,
        max_seq_len: int | None = None,
    ) -> Drafter:
        """Make a drafter for an engine.

        Say so at first if the draft model supports fewer tokens than a request may have.

        Args:
            model, tokenizer, blocks: the engine's.
            num_bytes: of the engine's pool.
            max_seq_len: largest number of tokens in a request; None for what the model supports.

        Raises:
            ValueError: the draft model has another tokenizer, or its pool doesn't fit in memory as well.
        """
        if self.load_draft is not None and self._draft is None:
            self._draft = self._load(model, tokenizer)
            note = note_on_context(self._draft, max_seq_len or model.config.max_position_embeddings)
            if note is not None:
                log.warning(note)
        if self._draft is not None:
            num_slots = blocks.num_blocks * blocks.block_size
            check_memory(blocks.num_blocks, num_bytes + pool_bytes(self._draft, num_slots))
        if self._cost is None:
            self._cost = once_written(cost_of_drafts)(model, self._draft)
        drafter: Drafter = (
            LookupDrafter(self.num_drafts)
            if self._draft is None
            else DraftModel(self._draft, blocks, self.num_drafts)
        )
        return drafter if self._cost is None else AdaptiveDrafter(drafter, self._cost)

    def _load(self, model: Qwen3Model, tokenizer: Tokenizer) -> Qwen3Model:
        assert self.load_draft is not None
        draft, own = self.load_draft()
        same_size = draft.config.vocab_size == model.config.vocab_size
        if not same_size or own.encode(SAMPLE) != tokenizer.encode(SAMPLE):
            raise ValueError("the draft model has another tokenizer than the model: choose one with the same")
        return draft


def cost_of_drafts(model: Qwen3Model, draft: Qwen3Model | None) -> DraftCost:
    """Measure what drafts cost. Stop at a hole if `AdaptiveDrafter` would stop there later."""
    acceptance = Acceptance([0.5])
    acceptance.record(1, 1)
    best_num_drafts({0: acceptance.survival}, 1.0, 1.0, 0.0)
    return profiled(model, draft)


@dataclass
class DraftCounts:
    """What became of an answer's drafts.

    Attributes:
        steps: how many steps had d drafts of which a were accepted, by (d, a).
    """

    steps: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Count a step with drafts."""
        key = (num_drafts, num_accepted)
        self.steps[key] = self.steps.get(key, 0) + 1

    @property
    def num_steps(self) -> int:
        """Number of steps that had drafts."""
        return sum(self.steps.values())

    @property
    def num_drafts(self) -> int:
        """Number of drafts."""
        return sum(drafts * number for (drafts, _), number in self.steps.items())

    @property
    def num_accepted(self) -> int:
        """Number of drafts that were accepted."""
        return sum(accepted * number for (_, accepted), number in self.steps.items())

    def histogram(self, most: int, num_drafts: int | None = None) -> list[int]:
        """Number of steps in which 0, 1, …, `most` drafts were accepted; only those with so many drafts."""
        counts = [0] * (most + 1)
        for (drafts, accepted), number in self.steps.items():
            if num_drafts in (None, drafts):
                counts[accepted] += number
        return counts


class SpeculativeDecoding(msgspec.Struct):
    """What became of an answer's drafts, as vLLM shows it. The bonus token counts in the mean length."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    acceptance_histogram_by_draft_length: dict[str, list[int]]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int

    @classmethod
    def of(cls, counts: DraftCounts, most: int) -> "SpeculativeDecoding":
        """Describe the drafts of an answer.

        Args:
            counts: what became of them.
            most: the largest number of drafts in a step.
        """
        lengths = sorted({drafts for drafts, _ in counts.steps})
        return cls(
            1 + counts.num_accepted / counts.num_steps if counts.num_steps else 1.0,
            counts.num_accepted / counts.num_drafts if counts.num_drafts else 0.0,
            counts.histogram(most),
            {str(length): counts.histogram(length, length) for length in lengths},
            counts.num_steps,
            counts.num_accepted,
            counts.num_drafts,
            most,
        )


def accepted_by_position(drafts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """How many drafts were accepted at each position, from the number of drafts and of accepted ones."""
    found: dict[int, int] = {}
    for _, num_accepted in drafts:
        for position in range(num_accepted):
            found[position] = found.get(position, 0) + 1
    return found
