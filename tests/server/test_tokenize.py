"""A crowd of /tokenize and /detokenize leaves the tokenizer to completions, and the event loop alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import pytest
from starlette.testclient import TestClient

from http_server.app import create_app
from http_server.config import ServerConfig
from http_server.endpoints.tokenize import MAX_BODY_BYTES
from tests.server.servers import MODEL, in_memory, wait_for
from tests.support.server_engines import SECONDS, ChatFake, make_engine
from tiny_llm import SchedulerConfig

CROWD = 8
TOOL = {"type": "function", "function": {"name": "weather"}}
MESSAGES = [{"role": "user", "content": "B"}]


class GatedTokenizer(ChatFake):
    """A tokenizer that notes each text, and then waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.gate = Semaphore(0)

    def encode(self, text: str, **options: Any) -> list[int]:
        self.texts.append(text)
        assert self.gate.acquire(timeout=SECONDS), "the test never let this text go"
        return super().encode(text, **options)


def test_completions_pass_a_crowd() -> None:
    tokenizer = GatedTokenizer()
    app = create_app(make_engine, lambda: tokenizer, ServerConfig((MODEL,), SchedulerConfig(8, 4)))
    with in_memory(app) as client, ThreadPoolExecutor(CROWD + 1) as threads:
        try:
            crowd = [threads.submit(client.post, "/tokenize", json={"prompt": "A"}) for _ in range(CROWD)]
            wait_for(lambda: app.state.server.texts.locked())
            body = {"model": MODEL, "prompt": "B", "max_tokens": 2}
            completion = threads.submit(client.post, "/v1/completions", json=body)
            wait_for(lambda: app.state.server.client.admission.num_reqs == 1)
            assert client.get("/health").status_code == 200
            tokenizer.gate.release(2)  # those that were in front of it
            wait_for(lambda: len(tokenizer.texts) == 3)
            assert tokenizer.texts == ["A", "A", "B"]
        finally:
            tokenizer.gate.release(100)
        assert completion.result().status_code == 200
        assert [each.result().json()["count"] for each in crowd] == [1] * CROWD


@pytest.fixture
def client() -> Any:
    with in_memory(
        create_app(make_engine, ChatFake, ServerConfig((MODEL,), SchedulerConfig(8, 4)))
    ) as client:
        yield client


def test_what_a_client_may_leave_out() -> None:
    class Marking(ChatFake):
        """Begins texts with a token of its own."""

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [60] * add_special_tokens + super().encode(text)

    config = ServerConfig((MODEL,), SchedulerConfig(8, 4))
    with in_memory(create_app(make_engine, Marking, config)) as client:
        for body, tokens in (
            ({"prompt": "B"}, [60, 2]),
            ({"prompt": "B", "add_special_tokens": False}, [2]),
            ({"messages": MESSAGES}, [60, 21, 2, 1]),
            ({"messages": MESSAGES, "add_generation_prompt": False}, [60, 21, 2]),
        ):
            assert client.post("/tokenize", json=body).json()["tokens"] == tokens


@pytest.mark.parametrize(
    ("has_template", "body", "param"),
    [
        (True, {}, "prompt"),
        (True, {"prompt": "B", "messages": MESSAGES}, "prompt"),
        (True, {"messages": MESSAGES, "tools": [TOOL]}, "tools"),  # the template has none
        (False, {"messages": MESSAGES}, "messages"),
    ],
)
def test_the_field_at_fault(has_template: bool, body: dict[str, Any], param: str) -> None:
    class Chat(ChatFake):
        has_chat_template = has_template

    with in_memory(create_app(make_engine, Chat, ServerConfig((MODEL,), SchedulerConfig(8, 4)))) as client:
        response = client.post("/tokenize", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_long_texts_are_refused(client: TestClient) -> None:
    fits, start = "A" * (MAX_BODY_BYTES - 13), '{"prompt":"'
    assert client.post("/tokenize", content=f'{start}{fits}"}}').status_code == 200
    for path, body in (
        ("/tokenize", f'{start}{fits}A"}}'),
        ("/detokenize", f'{{"tokens":[{"1," * 2**17}1]}}'),
    ):
        response = client.post(path, content=body)
        assert response.status_code == 413
        assert str(MAX_BODY_BYTES) in response.json()["error"]["message"]
    assert client.post("/tokenize", content=f'{start}A"}}').json()["count"] == 1
