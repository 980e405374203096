"""Given drafters: how many drafts they ask for, what they learn from the outcome, and what they forget."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

import pytest

from tiny_llm import CostModel, LookupDrafter, ScheduledTokens, SchedulerOutput, Sequence
from tiny_llm.speculation.adaptive_drafter import (
    FIRST_RATE,
    NUM_OWN,
    RESTS_BETWEEN_TRIALS,
    STEPS_OF_REST,
    AdaptiveDrafter,
)
from tiny_llm.speculation.draft_cost import DraftCost
from tiny_llm.speculation.draft_length import Acceptance
from tiny_llm.speculation.drafter import Drafts

FREE, DEAR = DraftCost({1: CostModel(1.0, 0.0)}), DraftCost({1: CostModel(0.0, 1.0)})


class Ready:
    """Has some drafts for each sequence.

    Args:
        numbers: of each sequence, by id.
        most: returns at most so many of those that are granted.
    """

    def __init__(self, numbers: Mapping[int, int], most: int = 99) -> None:
        self.numbers = numbers
        self.most = most
        self.num_calls = 0
        self.released: list[int] = []
        self.is_closed = False

    def rests(self, sequences: Items[Sequence]) -> bool:
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        return {entry.sequence.id: self.numbers[entry.sequence.id] for entry in entries}

    def propose(self, output: SchedulerOutput, granted: Mapping[int, int], params: object) -> Drafts:
        self.num_calls += 1
        return Drafts({id: [7] * min(number, self.most) for id, number in granted.items() if number})

    def release(self, sequence_id: int) -> None:
        self.released.append(sequence_id)

    def close(self) -> None:
        self.is_closed = True


def decodes(sequences: Items[Sequence]) -> SchedulerOutput:
    """A step in which sequences decode."""
    return SchedulerOutput(tuple(ScheduledTokens(each, each.num_tokens - 1, 1, True) for each in sequences))


def step(
    drafter: AdaptiveDrafter, sequences: Items[Sequence], accepted: Mapping[int, int] | None = None
) -> dict[int, int] | None:
    """Let a drafter take part in a step, and append what comes of it.

    Args:
        drafter: gets everything that it wants.
        sequences: all of them decode.
        accepted: number of accepted drafts, by id; 0 by default.

    Returns:
        The numbers that the drafter wanted, without zeros; None if it rested.
    """
    if drafter.rests(sequences):
        wanted = None
    else:
        output = decodes(sequences)
        wanted = {id: number for id, number in drafter.wanted(output.final).items() if number}
        drafter.propose(output, wanted, {})
    for each in sequences:
        each.token_ids += [7] * (accepted or {}).get(each.id, 0) + [8]
    return wanted


def two() -> list[Sequence]:
    return [Sequence(0, [1, 2, 3]), Sequence(1, [4, 5])]


def test_the_rates_of_a_sequence_and_of_all_move_by_what_was_accepted() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 3, 1: 2}), FREE), two()
    assert step(drafter, sequences[:1], {0: 2}) == {0: 3}
    drafter.wanted(decodes(sequences[:1]).final)
    up, down = FIRST_RATE + 0.1 * (1 - FIRST_RATE), FIRST_RATE * 0.9
    assert drafter.of_all.rates[:4] == pytest.approx([up, up, down, FIRST_RATE])
    assert drafter.of[0].rates == drafter.of_all.rates


def test_a_sequence_starts_with_the_rates_of_all_and_then_has_its_own() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 1, 1: 1}), FREE, Acceptance([0.5, 0.5])), two()
    step(drafter, sequences[:1], {0: 1})
    step(drafter, sequences[1:])
    drafter.wanted(decodes(sequences).final)
    assert drafter.of[0].rates == pytest.approx([0.55, 0.5])
    assert drafter.of[1].rates == pytest.approx([0.55 * 0.9, 0.5])


def test_only_drafts_that_were_proposed_are_learned_from() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 3}, most=1), FREE), two()[:1]
    assert step(drafter, sequences, {0: 1}) == {0: 3}
    drafter.wanted(decodes(sequences).final)
    assert drafter.of_all.rates[1] == FIRST_RATE, "the second draft never came, so it was not rejected"


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([7, 7], id="tokens of steps without drafts"),  # it was preempted as a rest began
        pytest.param([9], id="a forced token in the place of a draft"),
    ],
)
def test_only_drafts_that_are_in_the_answer_were_accepted(later: list[int]) -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 3}), FREE), two()[:1]
    step(drafter, sequences, {0: 1})
    sequences[0].token_ids += later
    for _ in range(2):
        drafter.wanted(decodes(sequences).final)  # learns from each draft once
    rates = [round(rate, 6) for rate in drafter.of_all.rates[:3]]
    assert rates == [0.73, 0.63, FIRST_RATE], (
        "of three drafts, the first was accepted and the second rejected"
    )


def test_after_some_steps_with_drafts_a_sequence_is_judged_by_its_own_rates() -> None:
    cost = DraftCost({1: CostModel(1.0, 0.1)})
    drafter = AdaptiveDrafter(Ready({0: 4, 1: 4}), cost, Acceptance([0.4] * 4))
    sequences = two()
    numbers = [step(drafter, sequences, {0: 4}) for _ in range(NUM_OWN + 1)]
    last, own = numbers[-2:]
    assert last is not None
    assert own is not None
    assert last[0] == last.get(1), "judged alike until each has its own rates"
    assert own[0] > own.get(1, 0)


def test_no_more_drafts_are_wanted_than_the_other_drafter_has() -> None:
    assert step(AdaptiveDrafter(Ready({0: 3, 1: 1}), FREE), two()) == {0: 3, 1: 1}
    assert step(AdaptiveDrafter(Ready({0: 0, 1: 0}), FREE), two()) == {}


@pytest.mark.parametrize(
    ("draft_pass", "number"),
    [
        (None, 3),
        (CostModel(0.0, 0.0), 3),
        (CostModel(0.5, 0), 1),
        (CostModel(0.6, 0), 0),
        (CostModel(9, 0), 0),
    ],
)
def test_a_pass_of_the_draft_model_has_its_price(draft_pass: CostModel | None, number: int) -> None:
    drafter = AdaptiveDrafter(Ready({0: 3}), DraftCost({1: CostModel(1.0, 0.0)}, draft_pass))
    assert step(drafter, two()[:1]) == ({0: number} if number else {})


def test_drafts_of_one_sequence_must_pay_for_the_rows_of_a_whole_step() -> None:
    cost = DraftCost({1: CostModel(0.5, 0.25)})  # two decodes take 1 s, and each draft 0.25 s
    assert step(AdaptiveDrafter(Ready({0: 3, 1: 3}), cost), two()) == {0: 1, 1: 1}
    drafter, sequences = AdaptiveDrafter(Ready({0: 0, 1: 3}), cost), two()
    assert [step(drafter, sequences) for _ in range(2)] == [{}, None]


def test_where_drafts_do_not_pay_it_rests_and_then_looks_again() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 3, 1: 3}), DEAR), two()
    steps = [step(drafter, sequences) for _ in range(2 * STEPS_OF_REST + 3)]
    rest = [None] * STEPS_OF_REST
    assert steps == [{}, *rest, {}, *rest, {}]


@pytest.mark.parametrize(("number", "cost"), [(3, DEAR), (0, FREE)], ids=["too dear", "none found"])
def test_the_end_of_a_request_ends_a_rest_and_a_new_one_does_not(number: int, cost: DraftCost) -> None:
    sequences = [Sequence(id, [1, 2, 3]) for id in range(6)]
    drafter = AdaptiveDrafter(Ready(dict.fromkeys(range(6), number)), cost)
    step(drafter, sequences[:5])
    assert drafter.rests(sequences[:5])
    assert drafter.rests(sequences[:4])
    assert drafter.rests(sequences), "others run in its place"
    assert drafter.rests(sequences[:4])
    assert not drafter.rests(sequences[:4])


def test_a_rest_is_proposed_nothing_even_if_a_step_asks() -> None:
    other = Ready({0: 3, 1: 3})
    drafter, sequences = AdaptiveDrafter(other, DEAR), two()
    step(drafter, sequences)
    assert drafter.rests(sequences)
    num_calls, output = other.num_calls, decodes(sequences)
    drafter.cost = FREE  # even if drafts would pay by now
    assert drafter.wanted(output.final) == {}
    assert drafter.propose(output, {0: 1}, {}) == Drafts()
    assert other.num_calls == num_calls


def test_after_some_rests_one_draft_is_tried_where_it_is_likeliest_to_be_right() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 0, 1: 3}), DEAR), two()
    looks = [
        wanted
        for _ in range((STEPS_OF_REST + 1) * (2 * RESTS_BETWEEN_TRIALS + 1) + 2)
        if (wanted := step(drafter, sequences)) is not None
    ]
    rests = [{}] * RESTS_BETWEEN_TRIALS
    assert looks[: 2 * RESTS_BETWEEN_TRIALS + 2] == [*rests, {1: 1}, *rests, {1: 1}]


def test_drafts_that_pay_put_off_the_next_trial() -> None:
    drafter, sequences = AdaptiveDrafter(Ready({0: 3, 1: 3}), DEAR), two()

    def look() -> dict[int, int]:
        drafter.rests(())
        drafter.rests(())  # as after the end of all requests, so that a rest ends
        return {id: number for id, number in drafter.wanted(decodes(sequences).final).items() if number}

    looks = [look() for _ in range(RESTS_BETWEEN_TRIALS)]
    drafter.cost = FREE
    assert look()
    drafter.cost = DEAR
    looks += [look() for _ in range(RESTS_BETWEEN_TRIALS)]
    assert looks == [{}] * (2 * RESTS_BETWEEN_TRIALS)
    assert len(look()) == 1


def test_a_finished_sequence_is_forgotten_by_both_drafters() -> None:
    other = Ready({0: 1})
    drafter, sequences = AdaptiveDrafter(other, FREE), two()[:1]
    for _ in range(NUM_OWN + 1):
        step(drafter, sequences)
    drafter.release(0)
    drafter.release(5)  # unknown
    assert other.released == [0, 5]
    assert drafter.of == {}
    rates = list(drafter.of_all.rates)
    drafter.wanted(decodes([Sequence(0, [1] * 40)]).final)
    assert drafter.of_all.rates == rates, "the drafts of the finished sequence are learned from again"
    drafter.close()
    assert other.is_closed


def test_lookup_finds_only_for_the_sequences_of_the_step() -> None:
    drafter = LookupDrafter(3, 1, 2)
    first, second = Sequence(0, [1, 2, 3, 1]), Sequence(1, [4, 5, 4])
    assert drafter.wanted(decodes([first, second]).final) == {0: 3, 1: 3}
    assert drafter.wanted(decodes([second]).final) == {1: 3}
    assert drafter.propose(decodes([second]), {1: 2}, {}).token_ids == {1: [5, 4]}


def test_lookup_reads_what_a_sequence_has_gained_and_no_more_than_it_grants() -> None:
    drafter, sequence = LookupDrafter(4, 2, 3), Sequence(0, [1, 2, 3, 4])
    assert drafter.wanted(decodes([sequence]).final) == {0: 0}
    sequence.token_ids += [1, 2]
    assert drafter.wanted(decodes([sequence]).final) == {0: 4}
    assert drafter.propose(decodes([sequence]), {0: 3}, {}).token_ids == {0: [3, 4, 1]}
    assert drafter.propose(decodes([sequence]), {}, {}).token_ids == {}


def test_lookup_forgets_a_sequence_and_everything_when_it_closes() -> None:
    drafter, other = LookupDrafter(2, 1, 1), LookupDrafter(2, 1, 1)
    for each in (drafter, other):
        each.wanted(decodes([Sequence(0, [1, 2, 1]), Sequence(1, [3, 4, 3])]).final)
    drafter.release(0)
    drafter.release(5)  # unknown
    assert drafter.wanted(decodes([Sequence(0, [9, 8])]).final) == {0: 0}
    drafter.close()
    assert drafter.indexes == {}
    assert set(other.indexes) == {0, 1}
