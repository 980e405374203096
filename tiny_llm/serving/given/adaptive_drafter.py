"""Another drafter's drafts, as many as pay."""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from ...generation.sampler import SamplingParams
from ...model.qwen3 import Qwen3Model
from ..block_manager import BlockManager
from ..cost_model import CostModel, fit_cost_model
from ..model_runner import ModelRunner
from ..sequence import Sequence
from ..speculation.draft_length import Acceptance, best_num_drafts
from .drafter import Drafter, Drafts
from .scheduler_output import ScheduledTokens, SchedulerOutput

FIRST_RATE = 0.7
MOST_DRAFTS = 32
STEPS_BETWEEN_TRIALS = 64
"""Where drafts don't pay, one is tried this seldom, to notice when they would."""
NUM_PROFILED = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class DraftCost:
    """What a step costs: the engine's model by its cost model, and a pass of the draft model in seconds."""

    step: CostModel
    per_pass: float = 0.0


class AdaptiveDrafter:
    """Ask another drafter for as many drafts as are likely to pay.

    Args:
        drafter: where drafts come from.
        cost: what they cost, such as `profiled` measures.
    """

    def __init__(self, drafter: Drafter, cost: DraftCost) -> None:
        self.drafter = drafter
        self.cost = cost
        self.of_all = Acceptance([FIRST_RATE] * MOST_DRAFTS)
        self.of: dict[int, Acceptance] = {}
        self._proposed: dict[int, tuple[int, int]] = {}
        self._num_without = 0

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts for each sequence, of those that the other drafter has."""
        for entry in entries:
            self._learn(entry.sequence)
        most = self.drafter.wanted(entries)
        survival = {id: self.of[id].survival[:number] for id, number in most.items()}
        if not any(most.values()):
            return most
        step_seconds = self.cost.step.seconds(SchedulerOutput(tuple(entries)))
        chosen = best_num_drafts(survival, step_seconds, self.cost.step.per_token, self.cost.per_pass)
        self._num_without = 0 if any(chosen.values()) else self._num_without + 1
        if self._num_without == STEPS_BETWEEN_TRIALS:
            self._num_without = 0
            chosen[max(most, key=lambda id: survival[id][:1])] = 1
        return chosen

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return the other drafter's drafts, and note how many there are."""
        drafts = self.drafter.propose(output, granted, params)
        for entry in output.final:
            number = len(drafts.token_ids.get(entry.sequence.id, ()))
            self._proposed[entry.sequence.id] = (entry.sequence.num_tokens, number)
        return drafts

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self.of.pop(sequence_id, None)
        self._proposed.pop(sequence_id, None)
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()

    def _learn(self, sequence: Sequence) -> None:
        """See from a sequence's length how many of its last drafts were accepted."""
        own = self.of.setdefault(sequence.id, Acceptance(self.of_all.rates))
        num_tokens, num_drafts = self._proposed.pop(sequence.id, (0, 0))
        if num_drafts:
            num_accepted = sequence.num_tokens - num_tokens - 1
            own.record(num_drafts, num_accepted)
            self.of_all.record(num_drafts, num_accepted)


def profiled(model: Qwen3Model, draft: Qwen3Model | None = None, repeats: int = 5) -> DraftCost:
    """Measure what steps cost, with a model and a draft model or lookup. It takes a moment."""
    steps = [timed for _ in range(repeats) for size in NUM_PROFILED for timed in [timed_step(model, size)]]
    if draft is None:
        return DraftCost(fit_cost_model(steps))
    return DraftCost(fit_cost_model(steps), min(timed_step(draft, 1)[1] for _ in range(repeats)))


def timed_step(model: Qwen3Model, num_rows: int) -> tuple[SchedulerOutput, float]:
    """A step of one token for each of so many sequences, and the seconds it took."""
    blocks = BlockManager(num_rows, 16)
    sequences = [Sequence(id, [1] * 16) for id in range(num_rows)]
    for sequence in sequences:
        blocks.allocate(sequence, 16)
    output = SchedulerOutput(tuple(ScheduledTokens(each, 15, 1, True) for each in sequences))
    runner = ModelRunner(model, blocks)
    params = dict.fromkeys(range(num_rows), SamplingParams())
    runner.run(output, params)
    start = time.perf_counter()
    runner.run(output, params)
    return output, time.perf_counter() - start
