"""What the tests of the budget's days share: sequences, steps as plain rows, and a scheduler on paper."""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import pytest

from tests.support.fakes import prompt_of
from tiny_llm import Engine, EngineStep, Scheduler, SchedulerConfig, SchedulerOutput, Sequence

Row = tuple[int, int, int, bool]
"""(id, start, num_tokens, is_final) of an entry."""


class Timeline(list[list[Row]]):
    """The rows of each step."""


def sequence_of(id: int, length: int, computed: int = 0, generated: Items[int] = ()) -> Sequence:
    """A sequence whose prompt is the fake's of that length, seeded by its id."""
    sequence = Sequence(id, prompt_of(length, id))
    sequence.token_ids += generated
    sequence.num_computed_tokens = computed
    return sequence


def rows_of(output: SchedulerOutput) -> list[Row]:
    return [(entry.sequence.id, entry.start, entry.num_tokens, entry.is_final) for entry in output.entries]


def advance(
    scheduler: Scheduler, num_outputs: Items[int] | Mapping[int, int], max_steps: int | None = None
) -> Timeline:
    """Step a scheduler; a sequence leaves with its last token. Stops when nobody is left."""
    timeline = Timeline()
    while scheduler.has_work and len(timeline) != max_steps:
        if len(timeline) == 500:
            pytest.fail("there is still work after 500 steps")
        output = scheduled(scheduler)
        timeline.append(rows_of(output))
        complete(scheduler, output)
        for entry in output.final:
            if len(entry.sequence.generated_ids) >= num_outputs[entry.sequence.id]:
                scheduler.remove(entry.sequence.id)
    return timeline


def scheduled(scheduler: Scheduler) -> SchedulerOutput:
    """The next step; fails if `schedule` does what is left to `complete`."""
    __tracebackhide__ = True
    before = {each: each.num_computed_tokens for each in scheduler.running}
    output = scheduler.schedule()
    for each, number in before.items():
        if each.num_computed_tokens > number:
            pytest.fail(
                f"schedule changed num_computed_tokens of sequence {each.id} from {number} to "
                f"{each.num_computed_tokens}: that is for complete, once the step is computed"
            )
    return output


def complete(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Complete a step with token 1 for all; fails if it is not appended."""
    __tracebackhide__ = True
    before = {entry.sequence: entry.sequence.num_tokens for entry in output.final}
    scheduler.complete(output, {each.id: 1 for each in before})
    for each, number in before.items():
        if each.num_tokens != number + 1:
            pytest.fail(
                f"complete left sequence {each.id} with {each.num_tokens} tokens, after {number} and one "
                "that was sampled: append it"
            )


def run(engine: Engine, max_steps: int = 500) -> list[EngineStep]:
    """Step until nothing is unfinished."""
    steps: list[EngineStep] = []
    while engine.has_unfinished_requests:
        if len(steps) == max_steps:
            pytest.fail(f"there are unfinished requests after {max_steps} steps")
        steps.append(engine.step())
    return steps


def answers_of(steps: Items[EngineStep]) -> dict[int, list[int]]:
    """The tokens of each request that finished in these steps."""
    return {result.prompt_idx: list(result.token_ids) for step in steps for result in step.finished}


@dataclass
class Paper:
    """A request on paper: how many tokens it has and how many are computed."""

    id: int
    num_tokens: int
    num_outputs: int
    num_computed: int = 0
    is_stream: bool = False


def budget_of(config: SchedulerConfig, has_streams: bool) -> int:
    """Most tokens of a step, by whether a sequence that runs has generated a token."""
    prefill_only = config.max_num_prefill_only_tokens
    return config.max_num_batched_tokens if has_streams or prefill_only is None else prefill_only


def serve_on_paper(config: SchedulerConfig, jobs: Items[tuple[int, int, int]]) -> list[list[Row]]:
    """The rows of each step for requests by prompt, answer and the step before which each arrives."""
    order = sorted(range(len(jobs)), key=lambda id: jobs[id][2])
    pending = [(jobs[id][2], Paper(id, jobs[id][0], jobs[id][1])) for id in order]
    waiting: list[Paper] = []
    running: list[Paper] = []
    timeline: list[list[Row]] = []
    while pending or waiting or running:
        while pending and pending[0][0] <= len(timeline):
            waiting.append(pending.pop(0)[1])
        timeline.append(step_on_paper(config, running, waiting))
    return timeline


def step_on_paper(config: SchedulerConfig, running: list[Paper], waiting: list[Paper]) -> list[Row]:
    """One step: each that runs has a token of its own, the first takes of the rest what it can, and so on."""
    budget = budget_of(config, any(each.is_stream for each in running))
    longest = config.long_prefill_token_threshold or budget
    shares = {each.id: 1 for each in running}
    left = budget - len(running)
    for each in running:
        more = min(each.num_tokens - each.num_computed, longest) - 1
        shares[each.id] += min(more, left)
        left -= min(more, left)
    num_partial = sum(each.num_computed + shares[each.id] < each.num_tokens for each in running)
    while waiting and left and len(running) < config.max_num_seqs:
        share = min(waiting[0].num_tokens, longest, left)
        is_partial = share < waiting[0].num_tokens
        if is_partial and num_partial == config.max_num_partial_prefills:
            break
        num_partial += is_partial
        left -= share
        shares[waiting[0].id] = share
        running.append(waiting.pop(0))
    rows = []
    for each in list(running):
        start = each.num_computed
        each.num_computed += shares[each.id]
        is_final = each.num_computed == each.num_tokens
        rows.append((each.id, start, shares[each.id], is_final))
        if is_final:
            each.is_stream = True
            each.num_tokens += 1
            each.num_outputs -= 1
            if each.num_outputs == 0:
                running.remove(each)
    return rows


class FewBlocks:
    """Room for `capacity` tokens in all; the first `prefix` tokens of every sequence are held already."""

    def __init__(self, capacity: int, prefix: int = 0) -> None:
        self.capacity = capacity
        self.prefix = prefix
        self.held: dict[int, int] = {}

    def check_fits(self, sequence: Sequence) -> None:
        if sequence.num_tokens > self.capacity:
            raise ValueError(f"{sequence.num_tokens} tokens do not fit in {self.capacity}")

    def may_admit(self, sequence: Sequence) -> bool:
        return True

    def find_prefix(self, sequence: Sequence) -> int:
        return self.prefix

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        if sum(self.held.values()) + num_tokens > self.capacity:
            return False
        self.held[sequence.id] = self.held.get(sequence.id, 0) + num_tokens
        return True

    def room_for_drafts(self, sequence: Sequence, num_tokens: int) -> int:
        return self.capacity - sum(self.held.values())

    def shrink(self, sequence: Sequence) -> None:
        self.held[sequence.id] = sequence.num_computed_tokens

    def free(self, sequence: Sequence) -> None:
        del self.held[sequence.id]


class SpyPolicy:
    """Keeps who waits in a list, and notes what it is asked."""

    def __init__(self, is_reversed: bool = False) -> None:
        self.waiting: list[Sequence] = []
        self.is_reversed = is_reversed
        self.budget: int | None = None
        self.asked: list[tuple[list[int], int]] = []
        self.num_first = 0
        self.recorded: list[tuple[list[Row], float]] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def first(self) -> Sequence | None:
        self.num_first += 1
        return self.waiting[-1 if self.is_reversed else 0] if self.waiting else None

    def remove(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)

    def rank(self, sequence: Sequence) -> float:
        return -sequence.arrival if self.is_reversed else sequence.arrival

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        self.recorded.append((rows_of(output), seconds))

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        self.asked.append(([each.id for each in running], limit))
        return limit if self.budget is None else self.budget

    def __len__(self) -> int:
        return len(self.waiting)
