"""Thoughts: apart from the answer, whole and streamed, however the tags are cut, and before a grammar."""

import json
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from http_server.thoughts import ThoughtParser
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL, in_memory
from tests.server.test_responses import events_of
from tests.server.test_structured_outputs import ByteChat
from tests.server.test_structured_outputs import app_of as byte_app
from tests.server.test_tool_calls import CALL, WEATHER

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "How?"}], "temperature": 0}
CASES = [
    ("<think>\nabc\n</think>\n\nanswer", False, "abc", "answer"),
    ("\n<think>a  b</think>x </think> <think>y", False, "a  b", "x </think> <think>y"),
    ("<think></think>answer", False, "", "answer"),
    ("<think>\n\n</think>\n\nanswer\n", False, "", "answer\n"),
    ("<think>never ends ", False, "never ends", ""),
    ("<think>", False, "", ""),
    ("<think>a</thin", False, "a</thin", ""),
    ("no <think>thought</think>", False, "", "no <think>thought</think>"),
    ("<thinking>a</thinking>", False, "", "<thinking>a</thinking>"),
    (" <thin", False, "", " <thin"),
    ("  ", False, "", "  "),
    ("", False, "", ""),
    ("\nabc\n</think>\n\nanswer", True, "abc", "answer"),
    ("<think>\nabc</think>answer", True, "abc", "answer"),
    ("</think>answer", True, "", "answer"),
    ("all of it", True, "all of it", ""),
    ("a < b </think>c", True, "a < b", "c"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(("text", "has_begun", "thought", "rest"), CASES)
def test_a_thought_is_separated(text: str, has_begun: bool, thought: str, rest: str, size: int) -> None:
    parser = ThoughtParser(has_begun)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    found = [parser.add(piece) for piece in pieces] + [parser.add("", is_last=True)]
    assert "".join(each for each, _ in found) == thought
    assert "".join(each for _, each in found) == rest


def test_a_thought_is_passed_on_while_it_comes() -> None:
    parser = ThoughtParser()
    assert parser.add("<think>\nHm, ") == ("Hm,", "")
    assert parser.add("well</") == (" well", "")
    assert parser.add("think>\n") == ("", "")
    assert parser.add("Yes. ") == ("", "Yes. ")


def opening_app(text: str, size: int) -> Starlette:
    """An application whose prompts end with the tag that begins a thought."""
    app, tokenizer = scripted_app(text, size)
    tokenizer.decode = lambda token_ids: "How? <think>\n"  # type: ignore[method-assign]
    return app


def answers(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    """The message of a whole answer, and of a streamed one put together."""
    whole = client.post(CHAT, json=BODY | fields).json()["choices"][0]
    text = client.post(CHAT, json=BODY | fields | {"stream": True}).text
    chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n") if line.startswith("data: {")]
    deltas = [chunk["delta"] for chunk in chunks]
    joined: dict[str, Any] = {
        name: "".join(delta.get(name, "") for delta in deltas)
        for name in ("content", "reasoning", "reasoning_content")
    }
    joined["num_calls"] = sum("id" in call for delta in deltas for call in delta.get("tool_calls", []))
    message = whole["message"]
    found = {name: message.get(name) or "" for name in ("content", "reasoning", "reasoning_content")}
    assert whole["finish_reason"] == chunks[-1]["finish_reason"]
    return [found | {"num_calls": len(message.get("tool_calls", []))}, joined]


@pytest.mark.parametrize("size", [2, 3, 9])
@pytest.mark.parametrize(
    ("text", "opens", "fields", "thought", "content", "num_calls"),
    [
        ("<think>\nabc\n</think>\n\nanswer", False, {}, "abc", "answer", 0),
        ("abc\n</think>\n\nanswer", True, {}, "abc", "answer", 0),
        ("abc", True, {}, "abc", "", 0),
        (f"<think>{CALL[:44]}</think>x", False, {"tools": [WEATHER]}, CALL[:44], "x", 0),
        (f"<think>a</think>\n{CALL[:66]}", False, {"tools": [WEATHER]}, "a", "", 1),
        ("<think>abc</think>answer", False, {"include_reasoning": False}, "", "answer", 0),
    ],
)
def test_chat(
    text: str,
    opens: bool,
    fields: dict[str, Any],
    thought: str,
    content: str,
    num_calls: int,
    size: int,
) -> None:
    size = max(size, -(-len(text) // 59))
    app = opening_app(text, size) if opens else scripted_app(text, size)[0]
    with in_memory(app) as client:
        for found in answers(client, **fields):
            assert found == {
                "content": content,
                "reasoning": thought,
                "reasoning_content": thought,
                "num_calls": num_calls,
            }


def test_a_thought_alone_has_no_content() -> None:
    with in_memory(scripted_app("<think>abc", 3)[0]) as client:
        message = client.post(CHAT, json=BODY).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == (None, "abc")


def test_log_probabilities_come_with_thoughts() -> None:
    with in_memory(scripted_app("<think>abc</think>answer", 3)[0]) as client:
        text = client.post(CHAT, json=BODY | {"stream": True, "logprobs": True}).text
    chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n") if line.startswith("data: {")]
    tokens = [each["token"] for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert "".join(tokens) == "<think>abc</think>answer"


def test_responses_have_thoughts_as_items() -> None:
    body = {
        "model": MODEL,
        "input": "How?",
        "temperature": 0,
        "tools": [{"type": "function", "name": "weather"}],
    }
    text = f"<think>\nabc\n</think>\n{CALL[:66]}"
    with in_memory(scripted_app(text, 4)[0]) as client:
        whole = client.post(RESPONSES, json=body).json()
        events = events_of(client, body)
    thought, call = whole["output"]
    assert thought["type"] == "reasoning"
    assert (thought["summary"], thought["status"]) == ([], "completed")
    assert thought["content"] == [{"type": "reasoning_text", "text": "abc"}]
    assert (call["type"], call["arguments"]) == ("function_call", '{"city": "Ulm"}')
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    mine = [each for each in events if each.get("output_index") == 0]
    assert [each["type"] for each in mine if "delta" not in each] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert "".join(each.get("delta", "") for each in mine) == "abc"
    assert events.index(mine[-1]) < next(n for n, each in enumerate(events) if each.get("output_index") == 1)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


class OpeningBytes(ByteChat):
    """Its template ends with the tag that begins a thought."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return self.encode(messages[-1]["content"] + "<think>\n")


@pytest.mark.parametrize(
    ("tokenizer", "fields"),
    [
        (OpeningBytes(), {}),
        (ByteChat(), {}),
        (ByteChat(), {"chat_template_kwargs": {"enable_thinking": True}}),
    ],
)
@pytest.mark.parametrize(
    "demanded",
    [{"response_format": FORMAT}, {"structured_outputs": {"regex": '\\{"a": [12]\\}'}}],
)
def test_a_grammar_begins_after_the_thought(
    tokenizer: ByteChat, fields: dict[str, Any], demanded: dict[str, Any]
) -> None:
    bias = {str(1 + byte): -100 for byte in range(256) if chr(byte) not in 'abc</think>{}": 12'}
    with in_memory(byte_app(tokenizer=tokenizer)) as client:
        body = BODY | {"n": 8, "seed": 3, "temperature": 1, "logit_bias": bias, "max_tokens": 200}
        choices = client.post(CHAT, json=body | demanded | fields).json()["choices"]
    finished = [choice["message"] for choice in choices if choice["finish_reason"] == "stop"]
    for message in finished:
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
    if isinstance(tokenizer, OpeningBytes):
        assert all("reasoning" in choice["message"] for choice in choices)
    elif not fields:
        assert len(finished) == len(choices)
        assert all("reasoning" not in choice["message"] for choice in choices)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        (
            {"reasoning": {"effort": "high", "summary": "auto"}},
            {"reasoning_effort": "high", "enable_thinking": True},
        ),
        ({"chat_template_kwargs": {"thinking": True, "x": [1]}}, {"thinking": True, "x": [1]}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
    ],
)
def test_what_the_template_is_told(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    app, tokenizer = scripted_app("Yes.", 2)
    with in_memory(app) as client:
        assert client.post(CHAT, json=BODY | fields).status_code == 200
    told = {
        name: value
        for name, value in tokenizer.asked.items()
        if name not in ("messages", "add_generation_prompt")
    }
    assert told == expected
