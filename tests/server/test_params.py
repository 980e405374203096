"""From the fields of a request to the engine's parameters: defaults, zeros and what has two names."""

from typing import Any

import msgspec
import pytest

from http_server.answer_format import grammar_of_calls
from http_server.call_formats import format_of
from http_server.fields import ChatRequest, CompletionRequest
from http_server.params import chat_params, completion_params
from tiny_llm.generation.structured_outputs import StructuredOutputsParams

MESSAGES = [{"role": "user", "content": "A"}]
FUNCTION = {"name": "weather", "parameters": {"required": ["city"]}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "clock"}}]
NAMED = {"type": "function", "function": {"name": "clock"}}
ONE, SOME = "start: call", 'start: call ("\\n" call)*'


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": MESSAGES, **fields}, ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"model": "m", "prompt": "A", **fields}, CompletionRequest)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": None}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_k": 0}, "top_k", None),
        ({"top_k": -1}, "top_k", None),
        ({"top_k": 1}, "top_k", 1),
        ({"seed": 0}, "seed", 0),
        ({"seed": -1}, "seed", 2**64 - 1),
        ({"stop": "AB"}, "stop", ("AB",)),
        ({"stop": ["A", "B"]}, "stop", ("A", "B")),
    ],
)
def test_what_a_field_becomes(fields: dict[str, Any], name: str, value: Any) -> None:
    for params in (completion_params(completion(**fields)), chat_params(chat(**fields))):
        assert getattr(params, name) == value


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"max_tokens": -1}, None),
    ],
)
def test_the_length_of_an_answer(fields: dict[str, Any], most: int | None) -> None:
    assert chat_params(chat(**fields)).max_tokens == most


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": -1}, None), ({"max_tokens": 5}, 5)],
)
def test_the_length_of_a_completion(fields: dict[str, Any], most: int) -> None:
    assert completion_params(completion(**fields)).max_tokens == most


@pytest.mark.parametrize(
    "outputs",
    [
        {"json": {"type": "object"}},
        {"json_object": True},
        {"json_object": True, "disable_any_whitespace": True},
        {"regex": "a"},
        {"choice": ["a", "b"]},
        {"grammar": "start: foo"},
    ],
)
def test_structured_outputs_reach_the_engine(outputs: dict[str, Any]) -> None:
    for params in (
        completion_params(completion(structured_outputs=outputs)),
        chat_params(chat(structured_outputs=outputs)),
    ):
        assert params.structured_outputs == StructuredOutputsParams(**outputs)


@pytest.mark.parametrize(
    ("fields", "start", "num_tools"),
    [
        ({"tool_choice": "required"}, SOME, 2),
        ({"tool_choice": "required", "parallel_tool_calls": True}, SOME, 2),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ONE, 2),
        ({"tool_choice": NAMED}, ONE, 1),
        ({"tool_choice": NAMED, "parallel_tool_calls": True}, ONE, 1),
    ],
)
def test_a_grammar_allows_the_calls_that_were_asked_for(
    fields: dict[str, Any], start: str, num_tools: int
) -> None:
    form = format_of("<tool_call> arguments")
    first, *rules = grammar_of_calls(chat(tools=TOOLS, **fields), form).split("\n")
    assert first == start
    arguments = [rule for rule in rules if ": %json " in rule]
    assert len(arguments) == num_tools
    assert all('"type": "object"' in rule for rule in arguments)
