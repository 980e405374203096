"""When the drafter that counts costs asks another one for drafts, and when it rests."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

import pytest

from tiny_llm import CostModel, LookupDrafter, SamplingParams, Sequence
from tiny_llm.scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from tiny_llm.speculation import draft_cost
from tiny_llm.speculation.adaptive_drafter import RESTS_BETWEEN_TRIALS, STEPS_OF_REST, AdaptiveDrafter
from tiny_llm.speculation.draft_cost import (
    CONTEXTS,
    DRAFTS,
    SIZES,
    DraftCost,
    MeasuredStep,
    ProfiledDrafter,
    profiled,
)
from tiny_llm.speculation.draft_length import Acceptance
from tiny_llm.speculation.drafter import Drafts


class Counting(LookupDrafter):
    """Has the same number of drafts for each sequence, and counts how often it is asked."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.num_asked = 0

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        self.num_asked += 1
        return dict.fromkeys([entry.sequence.id for entry in entries], self.number)

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        return Drafts({id: [7] * (number - 1) for id, number in granted.items()})


def decodes(number: int) -> list[ScheduledTokens]:
    return [ScheduledTokens(Sequence(id, [3, 4]), 1, 1, True) for id in range(number)]


def steps_of_rest(drafter: AdaptiveDrafter, entries: list[ScheduledTokens]) -> int:
    sequences, count = [entry.sequence for entry in entries], 0
    while drafter.rests(sequences):
        count += 1
    return count


@pytest.mark.parametrize(
    ("row_seconds", "num_found", "num_sequences", "wanted", "num_asked", "num_resting"),
    [
        (0.01, 2, 3, {0: 2, 1: 2, 2: 2}, 1, 0),
        (1.0, 2, 3, {}, 0, STEPS_OF_REST),  # right or wrong, no draft can pay
        (0.64, 1, 1, {}, 0, STEPS_OF_REST),  # 1.7 tokens in 1.64 s: gains less than a tenth
        (0.5, 1, 1, {0: 1}, 1, 0),
        (0.01, 0, 1, {}, 1, 0),
        (0.01, 0, 5, {}, 1, 4),  # asking all of five in vain costs more than asking one
    ],
)
def test_the_other_drafter_is_asked_if_drafts_may_pay(
    row_seconds: float,
    num_found: int,
    num_sequences: int,
    wanted: dict[int, int],
    num_asked: int,
    num_resting: int,
) -> None:
    other, entries = Counting(num_found), decodes(num_sequences)
    cost = DraftCost({1: CostModel(1.0 - row_seconds if row_seconds < 1 else 0.0, row_seconds)})
    drafter = AdaptiveDrafter(other, cost, Acceptance([0.7] * 8))
    assert not drafter.rests([entry.sequence for entry in entries])
    assert drafter.wanted(entries) == wanted
    assert other.num_asked == num_asked
    assert steps_of_rest(drafter, entries) == num_resting


def test_costs_are_those_of_the_nearest_number_of_sequences() -> None:
    cost = DraftCost({1: CostModel(1.0, 0.0), 4: CostModel(3.0, 0.5, 0.25)}, CostModel(0.0, 2.0))
    assert [cost.of(number).per_step for number in (1, 2, 3, 9)] == [1.0, 1.0, 3.0, 3.0]
    output = SchedulerOutput(tuple(decodes(4)))  # each decode sees two tokens
    assert cost.seconds(output) == 3.0 + 4 * 0.5 + 8 * 0.25
    assert cost.seconds_of_a_row(output) == 0.5 + 2 * 0.25
    assert cost.seconds_of_a_pass(output) == 8.0


def test_a_profiled_drafter_has_exactly_the_drafts_asked_for() -> None:
    drafter, entries = ProfiledDrafter(Counting(1)), decodes(2)
    assert drafter.rests([]), "steps without drafts are plain ones"
    drafter.num_drafts = 3
    assert not drafter.rests([])
    assert drafter.wanted(entries) == {0: 3, 1: 3}
    assert drafter.drafter.num_asked == 1  # type: ignore[attr-defined]
    output = SchedulerOutput(tuple(entries))
    drafts = drafter.propose(output, {0: 3, 1: 2}, {})
    assert drafter.output is output
    assert {id: len(each) for id, each in drafts.token_ids.items()} == {0: 3, 1: 2}


def test_what_ends_reaches_the_drafter_that_is_profiled() -> None:
    other = LookupDrafter()
    drafter = ProfiledDrafter(other)
    drafter.wanted(decodes(2))
    drafter.release(0)
    assert other.indexes.keys() == {1}
    drafter.close()
    assert other.indexes == {}


def test_a_trial_that_finds_nothing_rests_like_others() -> None:
    entries, cost = decodes(2), DraftCost({1: CostModel(0.0, 1.0)})  # drafts never pay
    drafter = AdaptiveDrafter(Counting(0), cost)
    rests = []
    for _ in range(RESTS_BETWEEN_TRIALS + 2):
        assert drafter.wanted(entries) == {}
        rests.append(steps_of_rest(drafter, entries))
    assert rests == [STEPS_OF_REST] * (RESTS_BETWEEN_TRIALS + 2)


def test_costs_of_steps_count_their_drafts_and_costs_of_passes_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, draft_pass = CostModel(3.0, 0.5, 0.25), CostModel(2.0, 0.125, 0.5)

    def measure(model: object, draft: object, size: int, context: int, repeats: int) -> list[MeasuredStep]:
        sequences = [Sequence(id, [1] * context) for id in range(size)]
        before = SchedulerOutput(tuple(ScheduledTokens(each, context - 1, 1, True) for each in sequences))
        return [
            MeasuredStep(output, before, step.seconds(output), draft_pass.seconds(before) * (number > 0))
            for number in DRAFTS
            for output in [before.with_drafts({id: [1] * number for id in range(size)})]
        ]

    monkeypatch.setattr(draft_cost, "measure", measure)
    found = profiled(None, object())  # type: ignore[arg-type]
    assert found.steps.keys() == set(SIZES)
    for size in SIZES:
        for each in [each for context in CONTEXTS for each in measure(None, None, size, context, 1)]:
            assert found.seconds(each.output) == pytest.approx(each.seconds)
            assert found.seconds_of_a_pass(each.before) == pytest.approx(draft_pass.seconds(each.before))
