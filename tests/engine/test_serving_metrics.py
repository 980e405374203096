"""The metrics of a run: each on a run small enough to count by hand."""

import random

import pytest

from tiny_llm import RequestTimes, ServingMetrics, Slo

NEVER = Slo(ttft=0.001, itl=0.001)


def times(arrival: float, scheduled: float | None, *tokens: float, is_done: bool = True) -> RequestTimes:
    return RequestTimes(arrival, scheduled, list(tokens), is_done)


def test_one_request_in_numbers() -> None:
    request = times(2.0, 2.5, 3.0, 3.25, 4.25)
    assert (request.queue_time, request.ttft) == (0.5, 1.0)
    assert request.gaps == [0.25, 1.0]
    assert request.tpot == 0.625


def test_what_did_not_happen_is_none() -> None:
    request = RequestTimes(1.0)
    assert (request.queue_time, request.ttft, request.tpot, request.gaps) == (None, None, None, [])
    request.tokens.append(2.0)
    assert (request.ttft, request.tpot, request.gaps) == (1.0, None, [])


def test_only_the_first_step_ends_the_waiting() -> None:
    request = RequestTimes(1.0)
    request.record_scheduled(3.0)
    request.record_scheduled(5.0)
    assert request.queue_time == 2.0


@pytest.mark.parametrize(
    ("target", "is_met"), [(Slo(1.0, 1.0), True), (Slo(0.99, 1.0), False), (Slo(1.0, 0.99), False)]
)
def test_a_target_is_met_at_its_bounds(target: Slo, is_met: bool) -> None:
    assert target.is_met_by(times(2.0, 2.5, 3.0, 3.25, 4.25)) is is_met


def test_an_answer_that_has_not_ended_is_not_good() -> None:
    target = Slo(10.0, 10.0)
    assert not target.is_met_by(times(0.0, 0.0, 1.0, 2.0, is_done=False))
    assert not target.is_met_by(times(0.0, 0.0))
    assert target.is_met_by(times(0.0, 0.0, 1.0))


@pytest.mark.parametrize(("ttft", "itl"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_a_target_is_positive(ttft: float, itl: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Slo(ttft, itl)


def test_a_run_in_numbers() -> None:
    requests = [
        times(1.0, 1.5, 2.0, 3.0, 5.0),
        times(3.0, 5.0, 7.0, 7.5),
        times(4.0, 6.0, 11.0, is_done=False),
        times(4.5, None, is_done=False),
    ]
    metrics = ServingMetrics.of(requests, Slo(ttft=4.0, itl=0.5))
    assert (metrics.num_requests, metrics.num_done) == (4, 2)
    assert metrics.seconds == 10.0
    assert metrics.output_tokens_per_s == 0.6
    assert (metrics.goodput, metrics.good_share) == (0.1, 0.25), "only the second: the first paused for 2 s"
    assert (metrics.ttft_p50, metrics.ttft_p99) == (4.0, pytest.approx(6.94))
    assert (metrics.queue_p50, metrics.queue_p99) == (2.0, 2.0)
    assert (metrics.itl_p50, metrics.itl_p99, metrics.longest_itl) == (1.0, pytest.approx(1.98), 2.0)
    assert metrics.tpot_p50 == 1.0


def test_a_run_without_a_token() -> None:
    metrics = ServingMetrics.of([RequestTimes(3.0)], NEVER)
    assert metrics.seconds == 0.0
    assert metrics.output_tokens_per_s is None
    assert metrics.goodput is None
    assert (metrics.good_share, metrics.ttft_p50, metrics.itl_p99) == (0.0, None, None)


def test_a_run_needs_a_request() -> None:
    with pytest.raises(ValueError, match="at least"):
        ServingMetrics.of([], NEVER)


def test_a_shift_of_the_clock_changes_nothing() -> None:
    rng = random.Random(17)
    target = Slo(2.0, 0.5)
    for _ in range(200):
        requests, shifted = [], []
        for _ in range(rng.randint(1, 5)):
            moments = sorted(rng.randrange(64) / 8 for _ in range(rng.randint(2, 6)))
            arrival, scheduled, *tokens = moments
            requests.append(times(arrival, scheduled, *tokens))
            shifted.append(times(arrival + 32, scheduled + 32, *(token + 32 for token in tokens)))
        assert ServingMetrics.of(requests, target) == ServingMetrics.of(shifted, target)
