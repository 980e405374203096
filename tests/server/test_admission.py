"""Admission: slots are reserved first, always released, and a refusal says when to come back."""

from contextlib import suppress

import pytest

from tiny_llm import CostModel, SchedulerConfig
from tiny_llm.server.admission import (
    LONGEST_WAIT,
    Admission,
    QueueFullError,
    RemainingWork,
    seconds_until_room,
)


def test_slots_are_counted_and_released() -> None:
    admission = Admission(3)
    with admission.reserve(2) as reservation:
        assert admission.num_reqs == 2
        with pytest.raises(QueueFullError, match="num_queued_reqs"):
            admission.reserve(2)
        assert admission.num_reqs == 2
        reservation.release_one()
        assert admission.num_reqs == 1
        with admission.reserve(2):
            assert admission.num_reqs == 3
    assert admission.num_reqs == 0


def test_an_error_releases_everything() -> None:
    admission = Admission(3, 100)
    with suppress(KeyError), admission.reserve(2) as reservation:
        reservation.count_tokens(60)
        reservation.tokens_computed(20)
        raise KeyError
    assert (admission.num_reqs, admission.num_queued_tokens) == (0, 0)


def test_tokens_are_counted_until_they_are_computed() -> None:
    admission = Admission(9, 100)
    first, second = admission.reserve(), admission.reserve()
    first.count_tokens(70)
    with pytest.raises(QueueFullError, match="num_queued_tokens"):
        second.count_tokens(31)
    assert admission.num_queued_tokens == 70
    second.count_tokens(30)
    first.tokens_computed(70)
    assert admission.num_queued_tokens == 30


def test_a_request_that_is_larger_than_the_limit_is_admitted_alone() -> None:
    admission = Admission(9, 100)
    with admission.reserve() as reservation:
        reservation.count_tokens(500)
        assert admission.num_queued_tokens == 500


@pytest.mark.parametrize(
    ("wait", "retry_after"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.1, 2), (7.5, 8), (1e9, LONGEST_WAIT)]
)
def test_when_to_come_back(wait: float, retry_after: int) -> None:
    admission = Admission(0, estimate_wait=lambda: wait)
    with pytest.raises(QueueFullError) as error:
        admission.reserve()
    assert error.value.retry_after == retry_after


COST = CostModel(per_step=0.01, per_token=0.001)


@pytest.mark.parametrize(
    ("unfinished", "seconds"),
    [
        ([], 0),
        ([RemainingWork(0, 1)], 0.011),
        ([RemainingWork(8, 1)], 0.018),
        ([RemainingWork(12, 1)], 0.018 + 0.014),
        ([RemainingWork(0, 30), RemainingWork(0, 3)], 3 * 0.012),
        ([RemainingWork(0, 30), RemainingWork(0, 20), RemainingWork(0, 1)], 20 * 0.012),
    ],
)
def test_seconds_until_room(unfinished: list[RemainingWork], seconds: float) -> None:
    assert seconds_until_room(SchedulerConfig(8, 2), COST, unfinished) == pytest.approx(seconds)
