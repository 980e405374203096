"""The engine's client: what reports do to answers, slots, estimates and the server's state."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from http_server import engine_client
from http_server.config import ServerConfig
from http_server.engine_client import EngineClient, Running
from http_server.errors import ApiError
from http_server.record import RequestRecord
from tests.server.servers import MODEL
from tests.support.server_engines import SECONDS, make_engine
from tiny_llm import CostModel, Engine, SamplingParams, SchedulerConfig
from tiny_llm.server.admission import Reservation
from tiny_llm.server.mailbox import Increment, Report, StepReport, Stopped

CONFIG = ServerConfig((MODEL,), SchedulerConfig(8, 4))


@asynccontextmanager
async def a_client(make: Callable[[], Engine] = make_engine) -> AsyncIterator[EngineClient]:
    """A client that is ready. What it submits never reaches its engine, so all reports come from the test."""
    client = EngineClient(make, CONFIG)
    try:
        await asyncio.wait_for(client.ready.wait(), SECONDS)
        client._thread.submit = lambda *args: None  # type: ignore[method-assign]
        yield client
    finally:
        await client.stop()


def run(test: Callable[[EngineClient], Awaitable[None]]) -> None:
    """Run a test with a client."""

    async def with_client() -> None:
        async with a_client() as client:
            await test(client)

    asyncio.run(with_client())


def submitted(
    client: EngineClient, num_prompt_tokens: int = 5, max_tokens: int | None = None, arrival: float = 0.0
) -> tuple[int, Running]:
    """A request of one answer that the engine works on: its ticket, and what the client knows of it."""
    reservation: Reservation = client.admission.reserve()
    reservation.count_tokens(num_prompt_tokens)
    record = RequestRecord("r", arrival, num_prompt_tokens)
    running = Running(0, asyncio.Queue(), SamplingParams(max_tokens=max_tokens), record, reservation)
    return client.submit(running, (1,) * num_prompt_tokens, 0), running


def gains(ticket: int, *token_ids: int, end: str | None = None) -> StepReport:
    """A step that added tokens to an answer."""
    return StepReport(len(token_ids), increments=(Increment(ticket, token_ids, "", (), end),))


def counted(client: EngineClient, name: str, **labels: str) -> float | None:
    """A number of the metrics."""
    labels = {"model_name": MODEL, "engine": "0"} | labels
    return client.metrics.registry.get_sample_value(f"vllm:{name}", labels)


def test_the_first_token_frees_the_queue_and_the_end_frees_the_slot() -> None:
    async def test(client: EngineClient) -> None:
        ticket, _ = submitted(client)
        assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (1, 5)
        client._receive(gains(ticket, 7))
        assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (1, 0)
        client._receive(gains(ticket, 7))
        assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (1, 0)
        client._receive(gains(ticket, 7, end="stop"))
        assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (0, 0)

    run(test)


def test_an_answer_is_counted_once_however_many_tokens_a_step_adds() -> None:
    async def test(client: EngineClient) -> None:
        ticket, running = submitted(client)
        for report in (gains(ticket, 7), gains(ticket, 7, 8, 9), gains(ticket, end="length")):
            client._receive(report)
        assert (running.record.num_tokens, running.record.outcome) == (4, "length")
        assert counted(client, "prompt_tokens_total") == 5
        assert counted(client, "generation_tokens_total") == 4
        assert counted(client, "time_to_first_token_seconds_count") == 1
        assert counted(client, "inter_token_latency_seconds_count") == 2
        assert counted(client, "request_success_total", finished_reason="length") == 1
        assert counted(client, "request_success_total", finished_reason="stop") == 0

    run(test)


def test_latencies_are_measured_between_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: EngineClient) -> None:
        ticket, running = submitted(client, arrival=100.0)
        times = iter([102.0, 103.0, 107.0, 107.0])
        clock = SimpleNamespace(perf_counter=lambda: next(times))
        monkeypatch.setattr(engine_client, "time", clock)
        client._receive(StepReport(1, seconds=1.5, started={ticket: 3}))
        client._receive(gains(ticket, 7))
        client._receive(gains(ticket, 7, end="stop"))
        record = running.record
        assert (record.started, record.num_cached_tokens) == (100.5, 3)
        assert (record.first_token, record.last_token, record.ended) == (103.0, 107.0, 107.0)
        assert counted(client, "time_to_first_token_seconds_sum") == 3.0
        assert counted(client, "inter_token_latency_seconds_sum") == 4.0

    run(test)


def test_three_tokens_have_two_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: EngineClient) -> None:
        ticket, _ = submitted(client, arrival=100.0)
        for now in (101.0, 103.0, 104.0):
            monkeypatch.setattr(engine_client, "time", SimpleNamespace(perf_counter=lambda now=now: now))
            client._receive(gains(ticket, 7))
        assert counted(client, "inter_token_latency_seconds_sum") == 3.0

    run(test)


def test_a_request_starts_no_earlier_than_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: EngineClient) -> None:
        ticket, running = submitted(client, arrival=100.0)
        monkeypatch.setattr(engine_client, "time", SimpleNamespace(perf_counter=lambda: 100.5))
        client._receive(StepReport(1, seconds=2.0, started={ticket: 0}))
        assert running.record.started == 100.0

    run(test)


def test_what_is_reported_of_an_aborted_request_is_dropped() -> None:
    async def test(client: EngineClient) -> None:
        (gone, gone_running), (ticket, running) = submitted(client), submitted(client)
        dropped: list[int] = []
        client._thread.abort = dropped.append  # type: ignore[method-assign]
        client.abort(gone)
        client.abort(gone)
        assert dropped == [gone], "the engine is told once"
        assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (1, 10)
        increments = tuple(Increment(each, (7,), "G") for each in (gone, ticket))
        report = StepReport(
            2, 1.0, {gone: 1}, {gone: (3, 1), ticket: (2, 2)}, increments, {gone: "no"}, {gone: "no"}
        )
        client._receive(report)
        assert gone_running.queue.empty()
        assert gone_running.record.outcome == "abort"
        assert running.queue.get_nowait() == (0, increments[1])
        assert running.record.drafts.steps == {(2, 2): 1}

    run(test)


@pytest.mark.parametrize(
    ("report", "status", "code"),
    [
        (lambda ticket: StepReport(refused={ticket: "reason"}), 400, None),
        (lambda ticket: StepReport(failed={ticket: "reason"}), 500, "step_failed"),
        (lambda ticket: Stopped("reason"), 503, "stopped"),
    ],
    ids=["refused", "failed", "stopped"],
)
def test_an_error_ends_the_answers_it_concerns(
    report: Callable[[int], Any], status: int, code: str | None
) -> None:
    async def test(client: EngineClient) -> None:
        (ticket, running), (_, other) = submitted(client), submitted(client)
        client._receive(report(ticket))
        index, error = running.queue.get_nowait()
        assert index == 0
        assert isinstance(error, ApiError)
        assert (error.status, error.body.code) == (status, code)
        assert running.record.outcome == "error"
        assert other.queue.empty() == (status != 503)
        assert client.admission.num_reqs == (status != 503)

    run(test)


def test_all_answers_are_cut_off_with_an_error() -> None:
    async def test(client: EngineClient) -> None:
        submissions = dict(submitted(client) for _ in range(2))
        dropped: list[int] = []
        client._thread.abort = dropped.append  # type: ignore[method-assign]
        assert client.cut_off() == 2
        assert dropped == list(submissions)
        for running in submissions.values():
            _, error = running.queue.get_nowait()
            assert isinstance(error, ApiError)
            assert (error.status, error.body.code) == (503, "stopped")
        assert client.admission.num_reqs == 0
        assert client.cut_off() == 0

    run(test)


def test_no_request_is_left_in_the_gauges_after_the_last_one() -> None:
    async def test(client: EngineClient) -> None:
        (first, _), (last, _) = submitted(client), submitted(client)
        client.metrics.running.set(2)
        client.abort(first)
        assert counted(client, "num_requests_running") == 2
        client.abort(last)
        assert counted(client, "num_requests_running") == 0

    run(test)


def test_the_oldest_requests_are_shown() -> None:
    async def test(client: EngineClient) -> None:
        tickets = [submitted(client)[0] for _ in range(4)]
        client.abort(tickets[1])
        assert [ticket for ticket, _ in client.records(2)] == [tickets[0], tickets[2]]

    run(test)


# How long until there is room


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=50.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(engine_client, "time", clock)
    return clock


def test_the_wait_is_what_the_rest_of_an_answer_takes(clock: SimpleNamespace) -> None:
    async def test(client: EngineClient) -> None:
        assert client.seconds_until_room() == 1, "before any step was measured"
        clock.now += 2
        ticket, _ = submitted(client, 20, max_tokens=6)
        client._receive(StepReport(cost=CostModel(1.0, 0.0)))
        client._receive(StepReport())  # which tells no new costs
        assert client.seconds_until_room() == pytest.approx(3 + 5), "three steps for the prompt, then five"
        clock.now += 2
        client._receive(gains(ticket, 7))
        client._receive(gains(ticket, 7, 7))
        assert client.seconds_until_room() == pytest.approx(3), "three more tokens"

    run(test)


@pytest.mark.parametrize("max_tokens", [None, 500])
def test_the_wait_ends_where_the_context_does(clock: SimpleNamespace, max_tokens: int | None) -> None:
    async def test(client: EngineClient) -> None:
        submitted(client, 8, max_tokens)
        client._receive(StepReport(cost=CostModel(1.0, 0.0)))
        assert client.seconds_until_room() == pytest.approx(client.max_model_len - 8)

    run(test)


def test_an_estimate_serves_for_a_second(clock: SimpleNamespace) -> None:
    async def test(client: EngineClient) -> None:
        submitted(client, 8, max_tokens=3)
        client._receive(StepReport(cost=CostModel(1.0, 0.0)))
        assert client.seconds_until_room() == pytest.approx(3)
        client._receive(StepReport(cost=CostModel(2.0, 0.0)))
        clock.now += 1
        assert client.seconds_until_room() == pytest.approx(3)
        clock.now = math.nextafter(clock.now, math.inf)
        assert client.seconds_until_room() == pytest.approx(6)
        assert client.admission.full("num_queued_reqs").retry_after == 6

    run(test)


# The state of the server


def test_a_server_that_drains_while_it_loads_takes_no_requests_afterwards() -> None:
    may_load = Event()

    def make() -> Engine:
        assert may_load.wait(SECONDS)
        return make_engine()

    async def test() -> None:
        client = EngineClient(make, CONFIG)
        assert client.state == "loading"
        with pytest.raises(ApiError, match="is loading") as error:
            client.check_ready()
        assert (error.value.status, error.value.retry_after) == (503, 1)
        client.begin_draining()
        may_load.set()
        await asyncio.wait_for(client.ready.wait(), SECONDS)
        assert client.state == "draining"
        with pytest.raises(ApiError, match="is draining"):
            client.check_ready()
        await client.stop()
        assert client.state == "stopped"
        client.begin_draining()
        assert client.state == "stopped"
        with pytest.raises(ApiError, match="is stopped"):
            client.check_ready()

    asyncio.run(test())


def test_an_engine_that_cannot_be_made_stops_the_server() -> None:
    def make() -> Engine:
        raise ValueError("no model here")

    async def test() -> None:
        client = EngineClient(make, CONFIG)
        await asyncio.wait_for(client.ready.wait(), SECONDS)
        assert (client.state, client.error) == ("stopped", "no model here")
        with pytest.raises(ApiError, match="has failed"):
            client.check_ready()
        await client.stop()

    asyncio.run(test())


def test_the_thread_has_ended_when_the_client_has_stopped() -> None:
    class Lingering(EngineClient):
        """Its thread still has something to do after its last report."""

        def _post(self, report: Report) -> None:
            super()._post(report)
            if isinstance(report, Stopped):
                time.sleep(0.2)

    async def test() -> None:
        client = Lingering(make_engine, CONFIG)
        await client.stop()
        assert not client._thread._thread.is_alive()

    asyncio.run(test())


def test_watchers_see_that_the_server_drains() -> None:
    async def test(client: EngineClient) -> None:
        stream = client.feed.events(client)
        await anext(stream)
        (watcher,) = client.feed._watchers
        assert not watcher.is_behind
        client.begin_draining()
        assert watcher.is_behind
        await stream.aclose()

    run(test)
