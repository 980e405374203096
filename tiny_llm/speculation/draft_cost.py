"""What drafts cost, measured in steps of an engine."""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from statistics import median

from ..engine.engine import Engine
from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from ..scheduling.block_manager import BlockManager
from ..scheduling.scheduler import SchedulerConfig
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from ..simulation.cost_model import CostModel, context_of, fit_cost_model
from .draft_model import DraftModel
from .drafter import Drafter, Drafts
from .endless_tokenizer import EndlessTokenizer
from .lookup_drafter import LookupDrafter
from .with_drafts import with_drafts

SIZES, CONTEXTS, DRAFTS = (1, 2, 4, 8, 16, 32), (16, 112), (0, 1, 3)
"""Numbers of sequences, of tokens of their prompts and of drafts, of the steps that are measured."""
BLOCK_SIZE = 16
ANY_TOKEN = 1


@dataclass(frozen=True)
class DraftCost:
    """What steps with drafts cost, and what a pass of the draft model costs, if there is one.

    Args:
        steps: costs of steps by their number of sequences; at least one.
        draft_pass: of a pass that gives every sequence of a step one draft more.
    """

    steps: Mapping[int, CostModel]
    draft_pass: CostModel | None = None

    def of(self, num_sequences: int) -> CostModel:
        """The costs of steps with the nearest number of sequences."""
        return self.steps[min(self.steps, key=lambda number: abs(number - num_sequences))]

    def seconds(self, output: SchedulerOutput) -> float:
        """Predicted seconds of a step with its drafts, without the passes of the draft model."""
        return self.of(len(output.entries)).seconds(output)

    def seconds_of_a_row(self, output: SchedulerOutput) -> float:
        """Predicted seconds of one draft more, behind as many tokens as those of the step on average."""
        step = self.of(len(output.entries))
        return step.per_token + step.per_context * context_of(output) / output.num_tokens

    def seconds_of_a_pass(self, output: SchedulerOutput) -> float:
        """Predicted seconds in which every sequence of a step gets one draft more."""
        return self.draft_pass.seconds(output) if self.draft_pass else 0.0


def profiled(model: Qwen3Model, draft: Qwen3Model | None = None, repeats: int = 5) -> DraftCost:
    """Measure what steps cost, with a model and a draft model or lookup. It takes a moment.

    Args:
        model, draft: the models; None for lookup.
        repeats: how many steps of each kind are timed; their median counts.
    """
    measured = {
        size: [step for context in CONTEXTS for step in measure(model, draft, size, context, repeats)]
        for size in SIZES
    }
    steps = {
        size: fit_cost_model((each.output, each.seconds) for each in of_size)
        for size, of_size in measured.items()
    }
    if draft is None:
        return DraftCost(steps)
    passes = [each for of_size in measured.values() for each in of_size if each.pass_seconds]
    return DraftCost(steps, fit_cost_model((each.before, each.pass_seconds) for each in passes))


@dataclass(frozen=True)
class MeasuredStep:
    """A step without the time of its drafter, and the time per pass of the draft model, if there is one.

    Attributes:
        output: the step, with its drafts.
        before: the same without them, as the draft model sees it.
        seconds: of the step, without its drafter.
        pass_seconds: of a pass; 0 for a step without drafts.
    """

    output: SchedulerOutput
    before: SchedulerOutput
    seconds: float
    pass_seconds: float


class ProfiledDrafter:
    """Propose a fixed number of drafts for each sequence, and note how long that took.

    Args:
        drafter: makes the drafts. If it has too few, any token takes the place of the others.

    Attributes:
        num_drafts: for each sequence; 0 rests.
        output: the last step with drafts, without them.
        seconds: how long its drafts took.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.num_drafts = 0
        self._most: Mapping[int, int] = {}
        self.output = SchedulerOutput(())
        self.seconds = 0.0

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Rest while there are no drafts."""
        return not self.num_drafts

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """The same number for each sequence, after looking for drafts."""
        self._most = self.drafter.wanted(entries)
        return dict.fromkeys([entry.sequence.id for entry in entries], self.num_drafts)

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return exactly the number of drafts that is granted."""
        start = time.perf_counter()
        possible = {id: min(number, self._most[id]) for id, number in granted.items() if self._most[id]}
        found = self.drafter.propose(output, possible, params).token_ids
        self.output, self.seconds = output, time.perf_counter() - start
        return Drafts(
            {id: [*found.get(id, ()), *[ANY_TOKEN] * number][:number] for id, number in granted.items()}
        )

    def release(self, sequence_id: int) -> None:
        """Let the other drafter forget a sequence."""
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()


def measure(
    model: Qwen3Model, draft: Qwen3Model | None, num_sequences: int, num_tokens: int, repeats: int
) -> Iterator[MeasuredStep]:
    """Let sequences decode together, and time steps with each number of drafts."""
    most = num_tokens + 1 + (1 + repeats) * sum(1 + number for number in DRAFTS)
    blocks = BlockManager(num_sequences * -(-most // BLOCK_SIZE), BLOCK_SIZE)
    drafter = ProfiledDrafter(DraftModel(draft, blocks, max(DRAFTS)) if draft else LookupDrafter())
    config = SchedulerConfig(num_sequences * (num_tokens + max(DRAFTS)), num_sequences)
    execution = with_drafts(drafter)
    with Engine(model, EndlessTokenizer(), config, most, blocks, execution=execution) as engine:
        for _ in range(num_sequences):
            engine.add_request([ANY_TOKEN] * num_tokens)
        engine.step()
        for drafter.num_drafts in DRAFTS:
            engine.step()  # lets a draft model catch up
            yield timed(engine, drafter, repeats)


def timed(engine: Engine, drafter: ProfiledDrafter, repeats: int) -> MeasuredStep:
    """The median of some steps."""
    seconds, pass_seconds = [], []
    for _ in range(repeats):
        start, drafter.seconds = time.perf_counter(), 0.0
        output = engine.step().scheduled
        seconds.append(time.perf_counter() - start - drafter.seconds)
        pass_seconds.append(drafter.seconds / max(1, drafter.num_drafts))
    return MeasuredStep(output, drafter.output, median(seconds), median(pass_seconds))
