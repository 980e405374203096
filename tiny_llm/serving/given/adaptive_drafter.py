"""Another drafter's drafts, as many as pay."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import product

from ...generation.sampler import SamplingParams
from ...model.qwen3 import Qwen3Model
from ..block_manager import BlockManager
from ..cost_model import CostModel, fit_cost_model
from ..sequence import Sequence
from ..speculation.draft_length import Acceptance, best_num_drafts
from ..speculation.draft_model import DraftModel
from .drafter import Drafter, Drafts
from .lookup_drafter import LookupDrafter
from .scheduler_output import ScheduledTokens, SchedulerOutput
from .speculative_runner import SpeculativeRunner

FIRST_RATE = 0.7
MOST_DRAFTS = 32
NUM_OWN = 8
"""From so many steps with drafts on, a sequence has its own rates."""
STEPS_OF_REST = 32
"""Where drafts don't pay, this many steps go without, unless a request ends."""
RESTS_BETWEEN_TRIALS = 4
"""After so many rests one draft is tried all the same, to notice when drafts would pay."""
NUM_PROFILED = (1, 2, 4, 8, 16, 32)
NUM_DRAFTS_PROFILED = (0, 1, 3)


@dataclass(frozen=True)
class DraftCost:
    """What a step with drafts costs, and what a pass of the draft model costs, if there is one."""

    step: CostModel
    draft_pass: CostModel | None = None

    def seconds_of_a_pass(self, output: SchedulerOutput) -> float:
        """Predicted seconds in which every sequence of a step gets one draft more."""
        return self.draft_pass.seconds(output) if self.draft_pass else 0.0


class AdaptiveDrafter:
    """Ask another drafter for as many drafts as are likely to pay.

    Args:
        drafter: where drafts come from.
        cost: what they cost, such as `profiled` measures.
        of_all: how often the drafts of all sequences are accepted, if that is known from before.
    """

    def __init__(self, drafter: Drafter, cost: DraftCost, of_all: Acceptance | None = None) -> None:
        self.drafter = drafter
        self.cost = cost
        self.of_all = Acceptance([FIRST_RATE] * MOST_DRAFTS) if of_all is None else of_all
        self.of: dict[int, Acceptance] = {}
        self._num_learned: dict[int, int] = {}
        self._proposed: dict[int, tuple[int, int]] = {}
        self._is_resting = False
        self._steps_of_rest = 0
        self._num_at_rest = 0
        self._num_rests = 0

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Whether this step goes without drafts, since they did not pay a short while ago."""
        if len(sequences) < self._num_at_rest:
            self._steps_of_rest = 0
        self._steps_of_rest -= 1
        self._is_resting = self._steps_of_rest >= 0
        return self._is_resting

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts for each sequence, of those that the other drafter has."""
        for entry in entries:
            if entry.sequence.id in self._proposed:
                self._learn(entry.sequence)
        if self._is_resting:
            return {}
        most = self.drafter.wanted(entries)
        if not any(most.values()):
            return {}
        of_all = self.of_all.survival
        survival = {id: self._own_survival(id, of_all)[:number] for id, number in most.items()}
        output, step = SchedulerOutput(tuple(entries)), self.cost.step
        chosen = best_num_drafts(
            survival, step.seconds(output), step.per_token, self.cost.seconds_of_a_pass(output)
        )
        if any(chosen.values()):
            self._num_rests = 0
            return chosen
        self._num_rests += 1
        if self._num_rests > RESTS_BETWEEN_TRIALS:
            self._num_rests = 0
            return {max(survival, key=lambda id: survival[id][:1]): 1}
        self._steps_of_rest, self._num_at_rest = STEPS_OF_REST, len(entries)
        return {}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return the other drafter's drafts, and note how many there are."""
        if self._is_resting:
            return Drafts()
        drafts = self.drafter.propose(output, granted, params)
        sequences = {entry.sequence.id: entry.sequence for entry in output.final}
        for id, each in drafts.token_ids.items():
            self._proposed[id] = (sequences[id].num_tokens, len(each))
        return drafts

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        for each in (self.of, self._num_learned, self._proposed):
            each.pop(sequence_id, None)
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()

    def _learn(self, sequence: Sequence) -> None:
        """See from a sequence's length how many of its last drafts were accepted."""
        id = sequence.id
        num_tokens, num_drafts = self._proposed.pop(id)
        num_accepted = sequence.num_tokens - num_tokens - 1
        own = self.of.setdefault(id, Acceptance(self.of_all.rates))
        for each in (own, self.of_all):
            each.record(num_drafts, num_accepted)
        self._num_learned[id] = self._num_learned.get(id, 0) + 1

    def _own_survival(self, id: int, of_all: list[float]) -> list[float]:
        return self.of[id].survival if self._num_learned.get(id, 0) >= NUM_OWN else of_all


def profiled(model: Qwen3Model, draft: Qwen3Model | None = None, repeats: int = 5) -> DraftCost:
    """Measure what steps cost, with a model and a draft model or lookup. It takes a moment."""
    sizes = product(NUM_PROFILED, NUM_DRAFTS_PROFILED)
    step = fitted([verification(model, *size) for size in sizes], repeats)
    if draft is None:
        return DraftCost(step)
    return DraftCost(step, fitted([a_pass(draft, size) for size in NUM_PROFILED], repeats))


Timed = tuple[SchedulerOutput, Callable[[], object]]


def fitted(steps: Items[Timed], repeats: int) -> CostModel:
    """The cost model of some steps, each run several times in turns, of which the fastest run counts."""
    seconds = [[seconds_of(run) for _, run in steps] for _ in range(1 + repeats)][1:]
    return fit_cost_model(
        zip([output for output, _ in steps], map(min, zip(*seconds, strict=True)), strict=True)
    )


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def verification(model: Qwen3Model, num_sequences: int, num_drafts: int) -> Timed:
    """A step that verifies so many drafts of each sequence."""
    blocks, output = decodes(num_sequences)
    drafts = Drafts({id: [1] * num_drafts for id in range(num_sequences)} if num_drafts else {})
    runner = SpeculativeRunner(model, blocks, LookupDrafter())
    drafted, params = output.with_drafts(drafts.token_ids), dict.fromkeys(output.final_ids, SamplingParams())
    return drafted, lambda: runner.verify(drafted, params, drafts)


def a_pass(draft: Qwen3Model, num_sequences: int) -> Timed:
    """A pass of a draft model, which draws one draft for each sequence."""
    blocks, output = decodes(num_sequences)
    drafter, granted = DraftModel(draft, blocks), dict.fromkeys(output.final_ids, 1)
    params = dict.fromkeys(output.final_ids, SamplingParams())
    return output, lambda: drafter.propose(output, granted, params)


def decodes(
    num_sequences: int, num_tokens: int = 96, block_size: int = 16
) -> tuple[BlockManager, SchedulerOutput]:
    """A step in which so many sequences decode, with room for a block of drafts each."""
    num_blocks = num_tokens // block_size + 1
    blocks = BlockManager(num_sequences * num_blocks, block_size)
    sequences = [Sequence(id, [1] * num_tokens) for id in range(num_sequences)]
    for sequence in sequences:
        blocks.allocate(sequence, num_blocks * block_size)
    return blocks, SchedulerOutput(
        tuple(ScheduledTokens(each, num_tokens - 1, 1, True) for each in sequences)
    )
