"""Several answers to one request: their seeds, names, slots and tokens, and what is left at the end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from http_server import text_codec
from http_server.engine_client import EngineClient
from http_server.text_codec import ChatTokenizer
from tests.server.servers import MODEL, app_of, client_of, in_memory
from tests.support.fakes import FakeModel, FakeTokenizer
from tests.support.server_engines import SECONDS, ChatFake

COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "HELLO", "max_tokens": 9, "temperature": 1.9}


def texts(client: TestClient, fields: dict[str, Any]) -> list[str]:
    """The texts of a completion's answers, in the order of their indices."""
    choices = client.post(COMPLETIONS, json=BODY | fields).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


@pytest.mark.parametrize(("seed", "next_seed"), [(5, 6), (-2, -1), (-1, 0)])
def test_answer_i_of_each_prompt_uses_the_seed_plus_i(seed: int, next_seed: int) -> None:
    with in_memory(app_of()) as client:
        together = texts(client, {"prompt": ["HEL", "LO"], "n": 2, "seed": seed})
        alone = [texts(client, {"prompt": p, "seed": s})[0] for p in ("HEL", "LO") for s in (seed, next_seed)]
    assert together == alone


def test_answers_without_a_seed_differ() -> None:
    with in_memory(app_of()) as client:
        assert len(set(texts(client, {"n": 4, "ignore_eos": True}))) == 4


@pytest.mark.parametrize(
    ("fields", "ends"), [({}, [""]), ({"prompt": ["A", "B"], "n": 2}, ["[0]", "[1]", "[2]", "[3]"])]
)
def test_the_log_has_a_line_per_answer(
    caplog: pytest.LogCaptureFixture, fields: dict[str, Any], ends: list[str]
) -> None:
    with caplog.at_level(logging.INFO, "tiny_llm.requests"), in_memory(app_of()) as client:
        name = client.post(COMPLETIONS, json=BODY | fields).json()["id"]
    lines = [record.getMessage() for record in caplog.records if record.name == "tiny_llm.requests"]
    assert sorted(line.split()[0] for line in lines) == [name + end for end in ends]


def test_the_prompt_of_each_answer_is_counted_while_it_waits() -> None:
    app = app_of(max_num_queued_tokens=15)
    with in_memory(app) as client:
        admission = client_of(app).admission
        with admission.reserve() as other:
            other.count_tokens(1)
            refused = client.post(COMPLETIONS, json=BODY | {"n": 3})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert (
                client_of(app).metrics.registry.get_sample_value(
                    "vllm:admission_rejections_total",
                    {"model_name": MODEL, "engine": "0", "reason": "num_queued_tokens"},
                )
                == 1
            )
            assert client.post(COMPLETIONS, json=BODY | {"n": 2}).status_code == 200
            assert (admission.num_reqs, admission.num_queued_tokens) == (1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True},
        {"n": 3},
        {"n": 3, "prompt": ["A", "B"], "stream": True},
        {"prompt": "A" * 41},
        {"n": 2, "prompt": ["A", [61]]},
        {"structured_outputs": {"regex": "("}},
        {"stop": "E", "n": 2},
    ],
)
def test_nothing_is_reserved_after_an_answer_or_a_refusal(fields: dict[str, Any]) -> None:
    app = app_of()
    with in_memory(app) as client:
        client.post(COMPLETIONS, json=BODY | fields)
        admission = client_of(app).admission
        assert (admission.num_reqs, admission.num_queued_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("prompts", "param"), [(["A", [61]], "prompt"), (["A", "B" * 41], "prompt"), (["A", "B" * 31], "prompt")]
)
def test_every_prompt_has_to_fit(prompts: list[Any], param: str) -> None:
    with in_memory(app_of()) as client:
        assert client.post(COMPLETIONS, json=BODY | {"prompt": ["A", "B" * 30]}).status_code == 200
        response = client.post(COMPLETIONS, json=BODY | {"prompt": prompts, "max_tokens": 10})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("room", "status"), [(0, 200), (-1, 413)])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_body_may_be_as_large_as_the_limit(room: int, status: int, in_pieces: bool) -> None:
    body = json.dumps(BODY).encode()
    with in_memory(app_of(max_body_bytes=len(body) + room)) as client:
        content = iter([body[:9], body[9:]]) if in_pieces else body
        assert client.post(COMPLETIONS, content=content).status_code == status


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with in_memory(app_of()) as client:
        assert client.get(COMPLETIONS).headers["allow"] == "POST"


def test_what_clients_asked_for_is_measured() -> None:
    app = app_of()
    with in_memory(app) as client:
        for n in (1, 2):
            assert client.post(COMPLETIONS, json=BODY | {"n": n}).status_code == 200
        registry, labels = client_of(app).metrics.registry, {"model_name": MODEL, "engine": "0"}
        assert registry.get_sample_value("vllm:request_params_n_sum", labels) == 3
        assert registry.get_sample_value("vllm:request_params_max_tokens_sum", labels) == 18


# Clients that go


@asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[EngineClient]:
    """The client of an application that runs in this event loop."""
    async with app.router.lifespan_context(app):
        client = client_of(app)
        await asyncio.wait_for(client.ready.wait(), SECONDS)
        yield client


async def post(app: Starlette, body: dict[str, Any], goes: asyncio.Event) -> None:
    """Send a completion request; the client closes the connection when it is told to."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        await goes.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None: ...

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers, "query_string": b""}
    await app(scope, receive, send)


class Blocked:
    """A function that waits in another thread until the test lets it go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_waiting, self.may_go = Event(), Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.is_waiting.set()
        assert self.may_go.wait(SECONDS), "the test never let this call go"
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "fields"),
    [
        (FakeTokenizer, "encode", {}),
        (text_codec, "compiled", {"structured_outputs": {"regex": "A"}}),
        (FakeModel, "hidden_states", {}),
    ],
    ids=["encoding", "compiling", "answering"],
)
def test_a_client_that_goes_leaves_nothing_reserved(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fields: dict[str, Any], stream: bool
) -> None:
    blocked = Blocked(getattr(owner, name))
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: blocked(*args, **kwargs))
    app = app_of()

    async def test() -> None:
        goes = asyncio.Event()
        async with running(app) as client:
            try:
                posting = asyncio.create_task(post(app, BODY | fields | {"stream": stream, "n": 2}, goes))
                await asyncio.wait_for(asyncio.to_thread(blocked.is_waiting.wait, SECONDS), SECONDS)
                assert client.admission.num_reqs == 2
                goes.set()
                await asyncio.wait_for(posting, SECONDS)
                assert (client.admission.num_reqs, client.admission.num_queued_tokens) == (0, 0)
            finally:
                blocked.may_go.set()

    asyncio.run(test())


def test_a_tokenizer_that_cannot_be_loaded_reserves_nothing() -> None:
    class Broken(ChatFake):
        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            raise RuntimeError("a bug")

    app = app_of()
    with in_memory(app) as client:
        loading: asyncio.Future[ChatTokenizer] = app.state.server.codec._loading
        loading.result(SECONDS).__class__ = Broken  # type: ignore[call-arg]
        assert client.post(COMPLETIONS, json=BODY).status_code == 500
        assert client_of(app).admission.num_reqs == 0
