"""/v1/responses: what it reads, answers and refuses, whole and streamed."""

import json
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from http_server.fields import ChatRequest
from http_server.response_fields import ResponsesRequest, chat_request, echoed
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL, app_of, in_memory
from tests.support.server_engines import failing, make_engine

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
BODY = {"model": MODEL, "input": "How is it?", "temperature": 0}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
WHOLE_TOKENS = CALL.replace("\n</", "\n" * (1 + -len(CALL) % 3) + "</")  # of three characters
IDS = ("id", "item_id", "call_id", "created_at")


def events_of(client: TestClient, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; each is named as its data say."""
    text = client.post(PATH, json=body | {"stream": True}).text
    events = [part.split("\n") for part in text.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [each["type"] for each in found]
    return found


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key not in IDS}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("text", "fields", "kinds", "status"),
    [
        ("It rains.", {}, ["message"], "completed"),
        ("It rains.", {"max_output_tokens": 2}, ["message"], "incomplete"),
        ("", {}, ["message"], "completed"),
        (CALL, {"tools": [TOOL]}, ["function_call"], "completed"),
        (
            f"I look.\n{CALL}\n{CALL}",
            {"tools": [TOOL]},
            ["message", "function_call", "function_call"],
            "completed",
        ),
        (f"{WHOLE_TOKENS} So.", {"tools": [TOOL]}, ["function_call", "message"], "completed"),
        (CALL, {}, ["message"], "completed"),
        (
            f"{WHOLE_TOKENS} So.",
            {"tools": [TOOL], "max_output_tokens": len(WHOLE_TOKENS) // 3},
            ["function_call"],
            "incomplete",
        ),
    ],
)
def test_whole_and_streamed(text: str, fields: dict[str, Any], kinds: list[str], status: str) -> None:
    app, _ = scripted_app(text, 3)
    with in_memory(app) as client:
        response = client.post(PATH, json=BODY | fields)
        assert response.status_code == 200, response.text
        whole = response.json()
        assert [item["type"] for item in whole["output"]] == kinds
        assert whole["status"] == status
        assert whole["incomplete_details"] == (
            {"reason": "max_output_tokens"} if status == "incomplete" else None
        )
        events = events_of(client, BODY | fields)

    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["status"] == "in_progress"
    assert events[-1]["type"] == f"response.{status}"
    streamed = events[-1]["response"]
    streamed["usage"]["input_tokens_details"] = whole["usage"]["input_tokens_details"]
    assert without_ids(streamed) == without_ids(whole)
    for number, item in enumerate(streamed["output"]):
        mine = [each for each in events if each.get("output_index") == number]
        assert {each["item_id"] for each in mine if "item_id" in each} == {item["id"]}
        assert mine[0]["type"] == "response.output_item.added"
        assert mine[0]["item"]["status"] == "in_progress"
        assert not mine[0]["item"].get("content")
        assert not mine[0]["item"].get("arguments")
        assert mine[-1]["type"] == "response.output_item.done"
        assert mine[-1]["item"] == item
        deltas = "".join(each.get("delta", "") for each in mine)
        if item["type"] == "message":
            assert deltas == item["content"][0]["text"]
        else:
            assert deltas == item["arguments"] == '{"city": "Ulm"}'
            assert item["name"] == "weather"


def test_the_conversation_that_the_template_gets() -> None:
    app, tokenizer = scripted_app("Rain.", 2)
    call = {"type": "function_call", "name": "weather", "arguments": "{}"}
    conversation = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "How "}, {"type": "input_text", "text": "is it?"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {**call, "call_id": "a"},
        {**call, "call_id": "b", "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "So."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    with in_memory(app) as client:
        body = BODY | {"input": conversation, "instructions": "Be brief.", "tools": [TOOL]}
        response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    assert response.json()["instructions"] == "Be brief."
    assert response.json()["tools"][0]["name"] == "weather"
    calls = [
        {"id": name, "type": "function", "function": {"name": "weather", "arguments": {}}}
        for name in ("a", "b")
    ]
    assert tokenizer.asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
        {"role": "tool", "content": "sun", "tool_call_id": "b"},
        {"role": "assistant", "content": "No.", "reasoning_content": "So."},
    ]
    assert tokenizer.asked["tools"] == [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ]


def test_all_that_a_request_says_is_said_to_the_chat() -> None:
    shared = {
        "model": MODEL,
        "temperature": 0.5,
        "top_p": 0.25,
        "stream": True,
        "parallel_tool_calls": False,
        "stop": ["A"],
        "seed": 0,
        "top_k": 3,
        "repetition_penalty": 1.5,
        "ignore_eos": False,
        "priority": 2,
    }
    function = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
    call = {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "a"}
    schema = {"name": "a", "schema": {"type": "object"}, "strict": True}
    request = msgspec.convert(
        shared
        | {
            "input": [{"role": "user", "content": "A"}, call, {"role": "developer", "content": "B"}],
            "instructions": "C",
            "max_output_tokens": 7,
            "stream_options": {},
            "tools": [{"type": "function", **function}],
            "tool_choice": {"type": "function", "name": "weather"},
            "text": {"format": {"type": "json_schema", **schema}},
        },
        ResponsesRequest,
    )
    written = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    expected = msgspec.convert(
        shared
        | {
            "messages": [
                {"role": "system", "content": "C"},
                {"role": "user", "content": "A"},
                {"role": "assistant", "tool_calls": [written]},
                {"role": "developer", "content": "B"},
            ],
            "max_completion_tokens": 7,
            "stream_options": {},
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
        ChatRequest,
    )
    chat, places = chat_request(request)
    assert chat == expected
    assert places == ["instructions", "input[0]", "input[1]", "input[2]"]


@pytest.mark.parametrize(
    ("fields", "repeated"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "parallel_tool_calls": True, "max_output_tokens": None}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        ({"parallel_tool_calls": None}, {"parallel_tool_calls": True}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"max_output_tokens": 7, "metadata": {"a": "b"}}, {"max_output_tokens": 7, "metadata": {"a": "b"}}),
        ({"text": {"format": {"type": "json_object"}}}, {"text": {"format": {"type": "json_object"}}}),
        ({"instructions": "Hi", "tool_choice": "none"}, {"instructions": "Hi", "tool_choice": "none"}),
    ],
)
def test_a_response_repeats_its_request(fields: dict[str, Any], repeated: dict[str, Any]) -> None:
    request = msgspec.convert({"model": MODEL, "input": "A", **fields}, ResponsesRequest)
    found = echoed(request)
    assert {name: found[name] for name in repeated} == repeated


@pytest.mark.parametrize(("most", "number"), [(None, 3), (2, 2)])
def test_tokens_are_counted(most: int | None, number: int) -> None:
    app, _ = scripted_app("It rains.", 3)
    with in_memory(app) as client:
        body = BODY | {"max_output_tokens": most}
        counts = [
            client.post(PATH, json=body).json()["usage"],
            events_of(client, body)[-1]["response"]["usage"],
        ]
    for usage in counts:
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (
            3,
            number,
            3 + number,
        )


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt"}, 404, "model"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": [{"role": "user"}]}, 400, "input[0].content"),
        ({"input": [{"content": "A"}]}, 400, "input[0].role"),
        ({"input": [{}]}, 400, "input[0].role"),  # of several faults, always the first
        ({"input": [{"type": "function_call"}]}, 400, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "name": "a"}]}, 400, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "A", "output": "B"}]}, 400, "input[0].output"),
        ({"input": [{"role": "tool", "content": "A"}]}, 400, "input[0].role"),
        ({"input": [{"type": "reasoning", "summary": []}]}, 400, "input"),
        ({"input": [{"type": "reasoning", "role": "user"}]}, 400, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, 400, "input[0].type"),
        (
            {"input": [{"type": "reasoning", "id": "r", "summary": []}, {"role": "user", "content": "A"}]},
            200,
            None,
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "text": "A"}]}]},
            400,
            "input[0].content[0].type",
        ),
        ({"input": "A" * 50}, 400, "input"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"conversation": "c"}, 400, "conversation"),
        ({"background": True}, 400, "background"),
        ({"truncation": "later"}, 400, "truncation"),
        ({"include": ["a", "message.output_text.logprobs"]}, 400, "include[1]"),
        ({"text": {"format": {"type": "json_schema"}}}, 400, "text.format.name"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"temperature": 3}, 400, "temperature"),
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, 400, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "two words"}]}, 400, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, 400, "tool_choice.type"),
        ({"tools": [TOOL]}, 400, "tools"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "news"}}, 400, "tool_choice"),
        ({"stop": 5}, 400, "stop"),
        ({"ignore_eos": True, "max_output_tokens": None}, 400, "ignore_eos"),
        ({"n": 2}, 400, "n"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, 400, "input[0]"),
        ({"store": True, "user": "me", "metadata": {"a": "b"}, "reasoning": {"effort": "low"}}, 200, None),
        ({"stop": ["AB"], "seed": 1, "top_k": 5, "repetition_penalty": 1.1, "ignore_eos": True}, 200, None),
        ({"previous_response_id": None, "text": {"format": {"type": "text"}}, "stream": None}, 200, None),
    ],
)
def test_requests(fields: dict[str, Any], status: int, param: str | None) -> None:
    with in_memory(app_of()) as client:
        body = {"model": MODEL, "input": "HELLO", "max_output_tokens": 2, **fields}
        response = client.post(PATH, json=body)
        assert response.status_code == status, response.text
        if status != 200:
            assert response.json()["error"]["param"] == param, response.text
        else:
            assert response.json()["metadata"] == fields.get("metadata", {})
        assert (
            client.post(PATH, json={"model": MODEL, "input": "A", "max_output_tokens": 1}).status_code == 200
        )


def test_extras_have_an_effect() -> None:
    with in_memory(app_of()) as client:
        body = {"model": MODEL, "input": "HELLO", "temperature": 0, "max_output_tokens": 9}

        def text_of(**fields: Any) -> str:
            response = client.post(PATH, json=body | fields).json()
            return "".join(part["text"] for item in response["output"] for part in item["content"])

        text = text_of(ignore_eos=True)
        assert len(text) > 3
        assert text_of(ignore_eos=True, stop=text[2:4]) == text[: text.index(text[2:4])]
        hot = {"ignore_eos": True, "temperature": 2}
        assert text_of(**hot, seed=1) == text_of(**hot, seed=1) != text_of(**hot, seed=2)
        assert text_of(**hot, top_k=1) == text


def test_a_step_that_fails_ends_the_stream_with_an_error() -> None:
    with in_memory(app_of(lambda: failing(make_engine(), lambda output: True))) as client:
        events = events_of(client, {"model": MODEL, "input": "HELLO"})
        assert [each["type"] for each in events] == ["response.created", "response.in_progress", "error"]
        assert events[-1]["code"] == "step_failed"
        assert events[-1]["sequence_number"] == 2
