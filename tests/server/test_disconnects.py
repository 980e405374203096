"""Clients that go: what they held is free by the next step, wherever their request was."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, MutableMapping
from contextlib import contextmanager
from threading import Semaphore
from typing import Any

import httpx2
import pytest
from sse_starlette import ServerSentEvent
from sse_starlette.sse import SendTimeoutError

from http_server.config import ServerConfig
from http_server.engine_client import EngineClient
from http_server.event_stream import EventStream, is_send_timeout
from tests.server.servers import MODEL, SECONDS, app_of, client_of, on_socket, wait_for
from tests.support.fakes import FakeModel
from tests.support.server_engines import GatedModel, make_engine
from tiny_llm import Engine, SchedulerConfig
from tiny_llm.server.disconnects import ClientGoneError, unless_disconnected


def send(url: str, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    """Send a completion request over a raw socket, and leave the connection open."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    content = json.dumps({"model": MODEL} | body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@contextmanager
def gated_server(http: str = "auto") -> Iterator[tuple[str, EngineClient, Engine, GatedModel]]:
    """A server each of whose steps waits for the test: its address, client, engine and model."""
    model = GatedModel()
    engines = [make_engine(model=model, eos_token_ids=())]
    engine = engines[0]
    app = app_of(engines.pop)
    with on_socket(app, http=http) as url:
        try:
            yield url, client_of(app), engine, model
        finally:
            model.gate.release(1000)


def submissions(client: EngineClient) -> Semaphore:
    """Released each time the client submits a request to the engine."""
    submitted, submit = Semaphore(0), client.submit

    def counted(*args: Any) -> int:
        ticket = submit(*args)
        submitted.release()
        return ticket

    client.submit = counted  # type: ignore[method-assign]
    return submitted


@pytest.mark.parametrize("http", ["h11", "auto"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "num_steps", "num_others"),
    [("A" * 20, 2, 0), ("A" * 3, 5, 0), ("A" * 3, 1, 4)],
    ids=["prefilling", "decoding", "queued"],
)
def test_a_client_that_goes(http: str, stream: bool, prompt: str, num_steps: int, num_others: int) -> None:
    with gated_server(http) as (url, client, engine, model):
        submitted = submissions(client)
        others = [send(url, {"prompt": "B" * 5, "max_tokens": 30}) for _ in range(num_others)]
        for _ in others:
            assert submitted.acquire(timeout=SECONDS)
        gone = send(url, {"prompt": prompt, "max_tokens": 15, "stream": stream})
        assert submitted.acquire(timeout=SECONDS)
        assert model.is_waiting.acquire(timeout=SECONDS)
        while len(engine.requests) < num_others + 1:  # the step under way began before all were submitted
            model.next_step()
        for _ in range(num_steps - 1):
            model.next_step()
        (mine,) = [
            each for each in engine.requests.values() if each.sequence.num_prompt_tokens == len(prompt)
        ]
        assert mine.sequence.is_prefilling == (len(prompt) > 8 or num_others > 0)
        gone.close()
        wait_for(lambda: client.admission.num_reqs == num_others)
        model.gate.release()  # the step that was under way when the client went
        if num_others:
            assert model.is_waiting.acquire(timeout=SECONDS)
        wait_for(lambda: len(engine.requests) == num_others)
        if num_others == 0:
            assert engine.scheduler.blocks.num_used_blocks == 0  # type: ignore[attr-defined]
            metrics = httpx2.get(f"{url}/metrics").text
            assert re.search(r"vllm:num_requests_running{.*} 0.0", metrics)  # though no step says so
        for other in others:
            other.close()
        model.gate.release(1000)
        wait_for(lambda: not engine.requests)


def test_health_answers_while_a_step_takes_long() -> None:
    with gated_server() as (url, _, _, model), httpx2.Client(base_url=url, timeout=SECONDS) as client:
        connection = send(url, {"prompt": "A", "max_tokens": 2})
        assert model.is_waiting.acquire(timeout=SECONDS)
        for _ in range(20):
            assert client.get("/health").status_code == 200
        assert not model.is_waiting.acquire(blocking=False)  # it is the same step still
        model.gate.release(10)
        assert b"200 OK" in connection.recv(1000)
        connection.close()


def test_a_silent_stream_gets_comments() -> None:
    model = GatedModel()
    app = app_of(lambda: make_engine(model=model), keepalive=0.05)
    with on_socket(app) as url:
        connection = send(url, {"prompt": "A", "max_tokens": 2, "stream": True})
        received = b""
        while received.count(b": keepalive\n\n") < 3:
            received += connection.recv(1000)
        assert b"data:" not in received
        model.gate.release(10)
        while b"[DONE]" not in received:
            received += connection.recv(1000)
        connection.close()


def test_draining_lets_streams_end() -> None:
    model = GatedModel()
    app = app_of(lambda: make_engine(model=model, eos_token_ids=()))
    with on_socket(app) as url, httpx2.Client(timeout=SECONDS) as keeping:
        assert keeping.get(f"{url}/ready").status_code == 200
        connection = send(url, {"prompt": "A", "max_tokens": 3, "stream": True})
        assert model.is_waiting.acquire(timeout=SECONDS)
        client_of(app).begin_draining()
        response = keeping.get(f"{url}/ready")
        assert response.status_code == 503
        assert keeping.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "A"}).status_code == 503
        model.gate.release(10)
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(1000)
        assert received.count(b'"finish_reason":"length"') == 1
        connection.close()


LONG = {"prompt": "A", "max_tokens": 600, "stream": True, "logprobs": 5}  # more than all buffers hold


@contextmanager
def long_answers(**settings: Any) -> Iterator[tuple[str, EngineClient]]:
    """A server whose answers may be long, with small buffers."""
    app = app_of(lambda: make_engine(eos_token_ids=(), max_seq_len=1000, num_blocks=300), **settings)
    with on_socket(app, send_buffer=4096) as url:
        yield url, client_of(app)


def test_a_stream_whose_client_takes_nothing_ends(caplog: pytest.LogCaptureFixture) -> None:
    with long_answers(send_timeout=0.3, keepalive=0.1) as (url, client), send(url, LONG, receive_buffer=2048):
        wait_for(lambda: "took nothing for 0.3 s" in caplog.text)
        wait_for(lambda: client.admission.num_reqs == 0)
        assert httpx2.get(f"{url}/ready").status_code == 200


def test_an_event_and_a_comment_may_both_be_stuck(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def events() -> AsyncIterator[ServerSentEvent]:
        try:
            yield ServerSentEvent("stuck")
        finally:
            await asyncio.sleep(0.2)  # meanwhile the comment's time is over too

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(SECONDS)

    config = ServerConfig((MODEL,), SchedulerConfig(8, 4), keepalive=0.01, send_timeout=0.1)
    stream = EventStream(events(), lambda: ended.append("ended"), config)
    assert stream.ping_interval == config.keepalive
    asyncio.run(stream({"type": "http", "method": "GET"}, receiver(), send))
    assert "took nothing for 0.1 s" in caplog.text
    assert ended == ["ended"]


class GroupError(Exception):
    """Several errors, as `ExceptionGroup`, which Python 3.10 has no name for."""

    def __init__(self, *exceptions: Exception) -> None:
        super().__init__("together")
        self.exceptions = exceptions


@pytest.mark.parametrize(
    ("error", "is_timeout"),
    [
        (SendTimeoutError(), True),
        (OSError(), False),
        (GroupError(SendTimeoutError(), GroupError(SendTimeoutError())), True),
        (GroupError(SendTimeoutError(), OSError()), False),
    ],
)
def test_other_errors_are_no_timeouts(error: Exception, is_timeout: bool) -> None:
    assert is_send_timeout(error) == is_timeout


def test_other_errors_of_a_stream_are_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def events() -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent("a")
        raise OSError("broken")

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    stream = EventStream(events(), lambda: ended.append("ended"), ServerConfig((MODEL,), SchedulerConfig()))
    with pytest.raises(Exception, match=r"broken|errors in a TaskGroup"):
        asyncio.run(stream({"type": "http", "method": "GET"}, receiver(), send))
    assert ended == ["ended"]
    assert "took nothing" not in caplog.text


def test_an_answer_goes_on_while_its_client_takes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tiny_llm.requests")
    with long_answers() as (url, client), send(url, LONG, receive_buffer=2048) as connection:
        wait_for(lambda: "tokens=600" in caplog.text)
        wait_for(lambda: client.admission.num_reqs == 0)
        received = everything(connection)
    assert received.count(b'"finish_reason":"length"') == 1
    assert received.count(b'"token_logprobs"') > 100


def test_a_stream_whose_client_takes_a_little_goes_on() -> None:
    start = time.monotonic()
    with long_answers(send_timeout=0.5) as (url, _), send(url, LONG, receive_buffer=2048) as connection:
        everything(connection, pause=0.01)
    assert time.monotonic() - start > 0.5


def everything(connection: socket.socket, pause: float = 0.0) -> bytes:
    """Read a stream to its end, with a pause after each piece."""
    received, last = b"", b"?"
    while b"[DONE]" not in received[-100:] and last:
        last = connection.recv(8000)
        received += last
        time.sleep(pause)
    return received


def test_many_clients_that_come_and_go_leave_nothing_behind() -> None:
    class Slow(FakeModel):
        def hidden_states(self, *args: Any, **kwargs: Any) -> Any:
            self.calls.clear()
            time.sleep(0.002)
            return super().hidden_states(*args, **kwargs)

    engines = [make_engine(model=Slow(), eos_token_ids=())]
    engine = engines[0]
    app = app_of(engines.pop)

    def come_and_go(seed: int) -> None:
        connection = send(
            url, {"prompt": "A" * (1 + seed % 17), "max_tokens": 20, "stream": seed % 2 == 0, "n": 2}
        )
        time.sleep(seed % 13 * 0.004)
        connection.close()

    with on_socket(app) as url:
        threads = [threading.Thread(target=come_and_go, args=[seed]) for seed in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: client_of(app).admission.num_reqs == 0 and not engine.requests)
        assert client_of(app).admission.num_queued_tokens == 0
        assert engine.scheduler.blocks.num_used_blocks == 0  # type: ignore[attr-defined]


# The race of work against the connection


def receiver(*messages: str, wait: float = 0.0):  # type: ignore[no-untyped-def]
    left = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        if not left:
            await asyncio.sleep(SECONDS)
        await asyncio.sleep(wait)
        return {"type": left.pop(0)}

    return receive


async def result_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def test_work_that_ends_first() -> None:
    assert asyncio.run(unless_disconnected(receiver(), result_after(0.01))) == "done"


def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        asyncio.run(unless_disconnected(receiver(), fail()))


@pytest.mark.parametrize("messages", [["http.disconnect"], ["http.request", "http.disconnect"]])
def test_work_is_cancelled_and_has_cleaned_up(messages: list[str]) -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(SECONDS)
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    async def run(work: Awaitable[None]) -> None:
        with pytest.raises(ClientGoneError):
            await unless_disconnected(receiver(*messages, wait=0.01), work)
        assert events == ["cleaned up"]

    asyncio.run(run(work()))
