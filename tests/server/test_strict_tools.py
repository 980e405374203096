"""Strict tools: the model decides whether to call, and each call keeps its schema."""

import json
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.server.servers import in_memory
from tests.server.test_structured_outputs import (
    CHAT,
    IMPOSSIBLE,
    INPUT,
    MESSAGES,
    RESPONSES,
    WEATHER,
    ByteChat,
    app_of,
    formatted,
    named,
)
from tests.support.schemas import TOKENS, TableModel
from tiny_llm import Engine, PrefixCachingBlockManager, SchedulerConfig

TAGS = (b"<tool_call>", b"<tool", b"_call>")
WHOLE, FIRST, SECOND = range(len(TOKENS), len(TOKENS) + len(TAGS))
MANY = {"n": 12, "seed": 4, "temperature": 1}


class TagTokenizer(ByteChat):
    """Knows the tag as one token, and as two."""

    token_bytes = [*TOKENS, *TAGS]

    def decode(self, token_ids: Items[int]) -> str:
        known = (token for token in token_ids if token < len(self.token_bytes))
        return b"".join(self.token_bytes[token] for token in known).decode(errors="replace")


class CallingModel(TableModel):
    """Writes any text, and often the tag of a call."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        table = np.array(self.table)
        table[:, [WHOLE, FIRST]] += 3
        table[FIRST, SECOND] += 12
        self.table = mx.array(table)


def make_engine() -> Engine:
    blocks = PrefixCachingBlockManager(400, 8)
    return Engine(CallingModel(7), TagTokenizer(), SchedulerConfig(48, 12), 400, blocks)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> TagTokenizer:
    return TagTokenizer()


@pytest.fixture(scope="module")
def client(tokenizer: TagTokenizer) -> Iterator[TestClient]:
    with in_memory(app_of(make_engine, tokenizer)) as client:
        yield client


def tool(name: str, parameters: object, strict: bool | None = True) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


TOOLS = [tool("weather", WEATHER), tool("clock", {"properties": {}, "additionalProperties": False})]


def calls_of(client: TestClient, fields: dict[str, Any]) -> list[dict[str, str]]:
    """The calls of all answers. There is no tag in an answer that is not the beginning of a call."""
    response = client.post(CHAT, json=MESSAGES | MANY | {"tools": TOOLS} | fields)
    assert response.status_code == 200, response.text
    found = []
    for choice in response.json()["choices"]:
        calls = [each["function"] for each in choice["message"].get("tool_calls", [])]
        found += calls if choice["finish_reason"] != "length" else calls[:-1]  # the last may be cut off
        if choice["finish_reason"] != "length":
            assert "<tool_call>" not in (choice["message"]["content"] or "")
            assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    return found


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}}])
def test_each_call_is_valid(client: TestClient, fields: dict[str, Any]) -> None:
    calls = calls_of(client, fields)
    assert {call["name"] for call in calls} == {"weather", "clock"}
    for call in calls:
        jsonschema.validate(
            json.loads(call["arguments"]), WEATHER if call["name"] == "weather" else {"maxProperties": 0}
        )


def test_tools_that_are_not_strict_take_any_object(client: TestClient) -> None:
    closed = {"properties": {}, "additionalProperties": False}
    calls = calls_of(client, {"tools": [TOOLS[0], tool("clock", closed, strict=None)]})
    for call in calls:
        jsonschema.validate(
            json.loads(call["arguments"]), WEATHER if call["name"] == "weather" else {"type": "object"}
        )
    assert any(call["name"] == "clock" and json.loads(call["arguments"]) for call in calls)


def test_without_strict_nothing_is_enforced(client: TestClient) -> None:
    response = client.post(CHAT, json=MESSAGES | MANY | {"tools": [tool("weather", WEATHER, strict=False)]})
    texts = [choice["message"]["content"] or "" for choice in response.json()["choices"]]
    assert any("<tool_call>" in text for text in texts)


def test_an_answer_may_have_text_alone(client: TestClient) -> None:
    bias = {str(token): -100 for token in (WHOLE, FIRST, 1 + ord("<"))}
    response = client.post(CHAT, json=MESSAGES | MANY | {"tools": TOOLS, "logit_bias": bias})
    for choice in response.json()["choices"]:
        assert choice["message"]["content"]
        assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("size", [WHOLE, FIRST])
def test_text_before_a_call_stays_text(client: TestClient, size: int) -> None:
    other = FIRST if size == WHOLE else WHOLE
    response = client.post(CHAT, json=MESSAGES | MANY | {"tools": TOOLS, "logit_bias": {str(other): -100}})
    called = [each["message"] for each in response.json()["choices"] if "tool_calls" in each["message"]]
    assert called
    assert any(message["content"] for message in called)


def test_responses_keep_strict_tools(client: TestClient) -> None:
    flat = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    answers = [
        client.post(RESPONSES, json=INPUT | {"tools": [flat], "seed": seed}).json() for seed in range(8)
    ]
    assert answers[0]["tools"][0]["strict"] is True
    items = [item for answer in answers for item in answer["output"]]
    calls = [item for item in items if (item["type"], item["status"]) == ("function_call", "completed")]
    assert calls
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), WEATHER)


def test_the_tool_at_fault_of_a_response(client: TestClient) -> None:
    flat = {"type": "function", "name": "a", "parameters": IMPOSSIBLE | {"not": {}}, "strict": True}
    response = client.post(RESPONSES, json=INPUT | {"tools": [flat]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_thoughts_stay_possible_and_templates_see_no_strict(
    client: TestClient, tokenizer: TagTokenizer
) -> None:
    tokenizer.options.clear()
    body = MESSAGES | {"tools": TOOLS, "max_tokens": 1}
    assert client.post(CHAT, json=body).status_code == 200
    assert (
        client.post(CHAT, json=body | {"chat_template_kwargs": {"enable_thinking": True}}).status_code == 200
    )
    assert [each.get("enable_thinking") for each in tokenizer.options] == [None, True]
    assert all("strict" not in each["function"] for each in tokenizer.options[0]["tools"])


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"tool_choice": named("weather")},
        formatted(WEATHER),
        {"tools": [tool("a", None)]},
        {"parallel_tool_calls": False},
    ],
)
def test_what_strict_goes_with(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post(CHAT, json=MESSAGES | {"tools": TOOLS, "max_tokens": 20} | fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("a", IMPOSSIBLE | {"not": {}})]}, "tools"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [tool("a", WEATHER, strict=1)]}, "tools[0].function.strict"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(client: TestClient, fields: dict[str, Any], param: str) -> None:
    response = client.post(CHAT, json=MESSAGES | {"tools": TOOLS} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
