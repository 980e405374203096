"""The feed of steps that the page at / watches, and the page's files."""

import asyncio
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from http_server.config import ServerConfig
from http_server.feed import MOST_REQUESTS, MOST_STEPS, Feed
from http_server.record import RequestRecord
from tests.server.servers import MODEL, app_of, client_of, in_memory
from tests.support.server_engines import NUM_BLOCKS, SECONDS
from tiny_llm import SchedulerConfig
from tiny_llm.server.mailbox import EngineStats, Row, StepReport


class Alive:
    """A server without requests."""

    state = "ready"

    def records(self, most: int) -> list[tuple[int, RequestRecord]]:
        return [(ticket, RequestRecord(f"r{ticket}", 0.0, 5)) for ticket in range(3)][:most]


def make_feed() -> Feed:
    return Feed(ServerConfig((MODEL,), SchedulerConfig(8, 4)))


def report_of(number: int) -> StepReport:
    stats = EngineStats(num_running=1, num_hit_tokens=2, num_admitted_tokens=3)
    return StepReport(1, 0.5, drafts={7: (3, 2)}, rows=(Row(7, number, 1, False, True),), stats=stats)


async def read(stream: Any) -> dict[str, Any]:
    """The next event of a feed."""
    event = await asyncio.wait_for(anext(stream), SECONDS)
    content = json.loads(event.data)
    assert isinstance(content, dict)
    return content


def test_an_event_has_everything_since_the_one_before() -> None:
    async def run() -> None:
        feed, live = make_feed(), Alive()
        feed.step(report_of(0), 1.0)  # nobody watches
        stream = feed.events(live)
        first = await read(stream)
        assert first["steps"] == []
        assert [request["ticket"] for request in first["requests"]] == [0, 1, 2]
        assert first["totals"]["num_hit_tokens"] == 2
        for number in (1, 2):
            feed.step(report_of(number), 1.0 + number)
        feed.ended(9, RequestRecord("gone", 0.0, 5, outcome="length"))
        second = await read(stream)
        assert second["steps"] == [
            {"start": 0.5 + number, "end": 1.0 + number, "rows": [[7, number, 1, False, True]]}
            for number in (1, 2)
        ]
        assert second["requests"][0]["outcome"] == "length"
        assert second["totals"]["num_admitted_tokens"] == 9
        assert (second["totals"]["num_draft_tokens"], second["totals"]["num_accepted_tokens"]) == (9, 6)
        live.state = "draining"
        assert (await read(stream))["state"] == "draining"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert feed.num_watchers == 0

    asyncio.run(run())


def test_a_slow_reader_gets_the_newest_steps() -> None:
    async def run() -> None:
        feed = make_feed()
        stream = feed.events(Alive())
        await read(stream)
        for number in range(MOST_STEPS + 5):
            feed.step(report_of(number), float(number))
            feed.ended(number, RequestRecord("gone", 0.0, 5))
        event = await read(stream)
        assert [step["rows"][0][1] for step in event["steps"]] == list(range(5, MOST_STEPS + 5))
        assert event["num_left_out"] == 5
        assert len(event["requests"]) == MOST_REQUESTS + 3
        feed.step(report_of(0), 0.0)
        assert (await read(stream))["num_left_out"] == 0
        await stream.aclose()
        assert feed.num_watchers == 0

    asyncio.run(run())


def test_each_reader_sees_each_step_and_each_end_once() -> None:
    async def run() -> None:
        feed = make_feed()
        streams = [feed.events(Alive()) for _ in range(2)]
        for stream in streams:
            await read(stream)
        feed.step(report_of(1), 1.0)
        feed.ended(9, RequestRecord("gone", 0.0, 5, outcome="stop"))
        for stream in streams:
            event = await read(stream)
            assert len(event["steps"]) == 1
            assert [request["ticket"] for request in event["requests"]] == [9, 0, 1, 2]
        feed.step(report_of(2), 2.0)
        await streams[0].aclose()
        event = await read(streams[1])
        assert [step["rows"][0][1] for step in event["steps"]] == [2]
        assert [request["ticket"] for request in event["requests"]] == [0, 1, 2]
        assert event["num_left_out"] == 0
        assert feed.num_watchers == 1
        await streams[1].aclose()

    asyncio.run(run())


def test_a_step_that_computes_nothing_is_no_row() -> None:
    async def run() -> None:
        feed = make_feed()
        stream = feed.events(Alive())
        await read(stream)
        feed.step(StepReport(refused={3: "no"}), 1.0)
        assert (await read(stream))["steps"] == []
        await stream.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("state", ["draining", "stopped"])
def test_the_last_event_tells_the_end(state: str) -> None:
    async def run() -> None:
        feed, live = make_feed(), Alive()
        stream = feed.events(live)
        await read(stream)
        live.state = state  # and nothing else has changed
        assert (await read(stream))["state"] == state
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert feed.num_watchers == 0

    asyncio.run(run())


def test_nothing_is_sent_while_nothing_happens() -> None:
    async def run() -> None:
        stream = make_feed().events(Alive())
        await read(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.35)

    asyncio.run(run())


def test_steps_of_requests_are_counted_without_watchers() -> None:
    app = app_of()
    with in_memory(app) as client:
        for _ in range(2):
            body = {"model": MODEL, "prompt": "ABCDEFGHIJ", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
        feed = client_of(app).feed
        assert (feed.totals.num_hit_tokens, feed.totals.num_admitted_tokens) == (8, 20)
        assert feed.stats.num_running == 0
        assert feed.num_blocks == NUM_BLOCKS


def files_of(client: TestClient) -> dict[str, Any]:
    names = ("", "page/live.js", "page/live.css", "page/common.js")
    return {name: client.get(f"/{name}") for name in names}


def test_the_page_needs_no_key_but_its_data_do() -> None:
    with in_memory(app_of(api_key="k")) as client:
        for response in files_of(client).values():
            assert response.status_code == 200
            policy = response.headers["Content-Security-Policy"]
            assert policy.startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
            )
        assert client.get("/page/secret").status_code == 404
        assert client.get("/page/..%2f..%2fpyproject.toml").status_code == 404
        assert client.get("/events").status_code == 401
