"""When the drafter that counts costs asks another one for drafts, and when it rests."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

import pytest

from tiny_llm import CostModel, LookupDrafter, SamplingParams, Sequence
from tiny_llm.serving.given.adaptive_drafter import STEPS_OF_REST, AdaptiveDrafter
from tiny_llm.serving.given.draft_cost import DraftCost, ProfiledDrafter
from tiny_llm.serving.given.drafter import Drafts
from tiny_llm.serving.given.scheduler_output import ScheduledTokens, SchedulerOutput
from tiny_llm.serving.speculation.draft_length import Acceptance


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
    drafts = drafter.propose(SchedulerOutput(tuple(entries)), {0: 3, 1: 2}, {})
    assert {id: len(each) for id, each in drafts.token_ids.items()} == {0: 3, 1: 2}
