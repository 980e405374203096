"""/v1/messages: what it reads, answers and refuses, whole and streamed, in Anthropic's protocol."""

import json
import time
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from http_server.anthropic_chat import chat_of
from http_server.anthropic_fields import MessagesRequest
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL, app_of, client_of, in_memory
from tests.server.test_responses import CALL, WHOLE_TOKENS
from tests.support.fakes import FakeModel
from tests.support.server_engines import failing, make_engine
from tiny_llm import SchedulerOutput

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASKED = [{"role": "user", "content": "HI"}]
BODY = {"model": MODEL, "messages": ASKED, "max_tokens": 99, "temperature": 0}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Ulm"}}


def events_of(client: TestClient, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; each is named as its data say."""
    text = client.post(PATH, json=body | {"stream": True}).text
    events = [part.split("\n") for part in text.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name.removeprefix("event: ") for name, _ in events] == [each["type"] for each in found]
    return found


def joined(events: list[Any]) -> Any:
    """The message that the events of a stream describe, put together as Anthropic's clients do it."""
    message, blocks = events[0]["message"], []
    for each in events[1:-2]:
        kind = each["type"]
        if kind == "content_block_start":
            assert each["index"] == len(blocks)
            blocks.append({"json": "", **each["content_block"]})
        assert each["index"] == len(blocks) - 1
        if kind == "content_block_delta" and each["delta"]["type"] == "text_delta":
            blocks[-1]["text"] += each["delta"]["text"]
        elif kind == "content_block_delta" and each["delta"]["type"] == "thinking_delta":
            blocks[-1]["thinking"] += each["delta"]["thinking"]
        elif kind == "content_block_delta":
            assert each["delta"]["type"] == "input_json_delta"
            blocks[-1]["json"] += each["delta"]["partial_json"]
    starts = [each["index"] for each in events if each["type"] == "content_block_start"]
    assert starts == [each["index"] for each in events if each["type"] == "content_block_stop"]
    assert [each["type"] for each in events[-2:]] == ["message_delta", "message_stop"]
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(written)
    return message | {"content": blocks, "usage": events[-2]["usage"]} | events[-2]["delta"]


@pytest.mark.parametrize(
    ("text", "fields", "kinds", "reason"),
    [
        ("It rains.", {}, ["text"], "end_turn"),
        ("It rains.", {"max_tokens": 2}, ["text"], "max_tokens"),
        ("It rains.", {"stop_sequences": ["So", "ain"]}, ["text"], "stop_sequence"),
        ("It rains.", {"stop_sequences": ["So"]}, ["text"], "end_turn"),
        ("", {}, [], "end_turn"),
        (CALL, {"tools": [TOOL]}, ["tool_use"], "tool_use"),
        (f"I look.\n{CALL}\n{CALL}", {"tools": [TOOL]}, ["text", "tool_use", "tool_use"], "tool_use"),
        (f"{WHOLE_TOKENS} So.", {"tools": [TOOL]}, ["tool_use", "text"], "tool_use"),
        (CALL, {}, ["text"], "end_turn"),
        (f"<think>Ulm?</think>So.{CALL}", {"tools": [TOOL]}, ["thinking", "text", "tool_use"], "tool_use"),
        (
            "<think>Ulm?</think>So.",
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            ["text"],
            "end_turn",
        ),
        (CALL, {"tools": [TOOL], "tool_choice": {"type": "none"}}, ["text"], "end_turn"),
        (
            f"{CALL}\n{CALL}",
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            ["tool_use"],
            "tool_use",
        ),
    ],
)
def test_whole_and_streamed(text: str, fields: dict[str, Any], kinds: list[str], reason: str) -> None:
    app, _ = scripted_app(text, 3)
    with in_memory(app) as client:
        response = client.post(PATH, json=BODY | fields)
        assert response.status_code == 200, response.text
        whole = response.json()
        events = events_of(client, BODY | fields)
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    assert whole["stop_sequence"] == ("ain" if reason == "stop_sequence" else None)
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", MODEL)
    texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
    assert "ain" not in "".join(texts) or reason != "stop_sequence"
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert all((call["name"], call["input"]) == ("weather", {"city": "Ulm"}) for call in calls)

    assert events[0]["type"] == "message_start"
    assert (events[0]["message"]["content"], events[0]["message"]["stop_reason"]) == ([], None)
    streamed = joined(events)
    for message in (whole, streamed):
        message.pop("id")
        usage = message.pop("usage")
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 3
    for block in [*whole["content"], *streamed["content"]]:
        block.pop("id", None)
    assert streamed == whole


def test_a_call_that_is_cut_off_has_no_arguments() -> None:
    app, _ = scripted_app(CALL, 3)
    with in_memory(app) as client:
        body = BODY | {"tools": [TOOL], "max_tokens": 19}
        whole = client.post(PATH, json=body).json()
        written = [
            each["delta"]["partial_json"]
            for each in events_of(client, body)
            if each["type"] == "content_block_delta"
        ]
    assert ([block["input"] for block in whole["content"]], whole["stop_reason"]) == ([{}], "max_tokens")
    assert '{"city": "Ulm"}'.startswith("".join(written))
    assert len("".join(written)) > 3


def test_usage_counts_cached_tokens_apart() -> None:
    prompt = "A" * 12
    with in_memory(app_of()) as client:
        body = BODY | {"messages": [{"role": "user", "content": prompt}], "max_tokens": 3}
        first, second = (client.post(PATH, json=body).json()["usage"] for _ in range(2))
        start = events_of(client, body)[0]["message"]["usage"]
        counted = client.post(COUNT, json={"model": MODEL, "messages": body["messages"]}).json()
    assert first == {
        "input_tokens": 14,
        "output_tokens": 3,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    assert (second["input_tokens"], second["cache_read_input_tokens"]) == (2, 12)
    assert (start["input_tokens"], start["cache_read_input_tokens"]) == (2, 12)
    assert counted == {"input_tokens": 14}


def chat(fields: dict[str, Any]) -> Any:
    request, places = chat_of(msgspec.convert(BODY | fields, MessagesRequest))
    assert len(places) == len(request.messages)
    return request


def seen(fields: dict[str, Any]) -> list[Any]:
    """The roles and contents of a conversation, as a chat completion has it."""
    return [(message.role, message.content) for message in chat(fields).messages]


def test_the_conversation() -> None:
    text = {"type": "text", "text": "Hm.", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "rain"}]}
    thought = {"type": "thinking", "thinking": "Ulm?", "signature": "s"}
    conversation = [
        {"role": "user", "content": [text, text]},
        {"role": "assistant", "content": [thought, {"type": "redacted_thinking", "data": "?"}, text, USE]},
        {"role": "user", "content": [result, {**result, "content": None, "is_error": True}, text]},
    ]
    fields = {"system": [text, {"type": "text", "text": "!"}], "messages": conversation}
    assert seen(fields) == [
        ("system", "Hm.!"),
        ("user", "Hm.Hm."),
        ("assistant", "Hm."),
        ("tool", "rain"),
        ("tool", ""),
        ("user", "Hm."),
    ]
    message = chat(fields).messages[2]
    assert message.reasoning_content == "Ulm?"
    assert (message.tool_calls[0].id, message.tool_calls[0].function.arguments) == ("t", '{"city":"Ulm"}')
    assert chat(fields).messages[3].tool_call_id == "t"
    turns = [{"role": "system", "content": "S"}, *ASKED]
    assert seen({"messages": turns}) == [("system", "S"), ("user", "HI")]
    assert seen({"system": "S"}) == [("system", "S"), ("user", "HI")]
    assert chat({}).continue_final_message is None
    assert chat({"messages": [*ASKED, {"role": "assistant", "content": "So"}]}).continue_final_message is True


@pytest.mark.parametrize(
    ("fields", "name", "expected"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice", "required"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice", "auto"),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "parallel_tool_calls", False),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "chat_template_kwargs",
            {"enable_thinking": True},
        ),
        ({"thinking": {"type": "disabled"}}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, "chat_template_kwargs", None),
        ({"stop_sequences": ["a"]}, "stop", ["a"]),
        ({"max_tokens": 7}, "max_completion_tokens", 7),
        ({"top_k": 5}, "top_k", 5),
        ({"output_config": {"effort": "low"}}, "response_format", None),
    ],
)
def test_what_the_fields_become(fields: dict[str, Any], name: str, expected: Any) -> None:
    assert getattr(chat(fields), name) == expected


def test_tools_of_other_machines_are_skipped() -> None:
    tools = [TOOL | {"type": "custom", "strict": True}, {"type": "web_search_20250305", "name": "search"}]
    (tool,) = chat({"tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}).tools
    assert (tool.function.name, tool.function.parameters, tool.function.strict) == (
        "weather",
        {"type": "object"},
        True,
    )


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "gpt-5"}, 404, "not_found_error", "gpt-5"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            400,
            "invalid_request_error",
            "messages[0].role",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "user", "content": [USE]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        ({"tools": [{"name": "a"}]}, 400, "invalid_request_error", "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"max_tokens": 1000}, 400, "invalid_request_error", "messages: this model's maximum"),
    ],
)
def test_errors(fields: dict[str, Any], status: int, kind: str, words: str) -> None:
    body = {key: value for key, value in (BODY | fields).items() if value is not None}
    of_prompt = {key: body[key] for key in body if key not in ("max_tokens", "temperature")}
    with in_memory(app_of()) as client:
        sent = [(PATH, body), (COUNT, of_prompt)]
        for path, content in sent[:1] if fields.keys() & {"max_tokens", "mcp_servers"} else sent:
            response = client.post(path, json=content)
            found = response.json()
            assert (response.status_code, found["type"], found["error"]["type"]) == (status, "error", kind)
            assert found["error"].keys() == {"type", "message"}
            assert words in found["error"]["message"]


def test_other_errors_have_their_shape_too() -> None:
    with in_memory(app_of(api_key="k", max_num_queued_reqs=0)) as client:
        missing = client.post(PATH, json=BODY)
        assert (missing.status_code, missing.json()["error"]["type"]) == (401, "authentication_error")
        assert client.post("/v1/completions", json=BODY).json()["error"]["code"] == "invalid_api_key"
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        wrong = client.get(PATH, headers=headers)
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
        admission = client_of(client.app).admission  # type: ignore[arg-type]
        with admission.reserve(admission.max_num_reqs):
            full = client.post(PATH, json=BODY, headers=headers)
        assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
        assert full.headers["retry-after"]
        body = BODY | {"max_tokens": 3}
        for sent in (headers, {"Authorization": "Bearer k"}, {"x-api-key": "k", "Authorization": "Bearer x"}):
            assert client.post(PATH, json=body, headers=sent).status_code == 200
        assert client.post(PATH, json=body, headers={"x-api-key": "K"}).status_code == 401


def test_a_step_that_fails_ends_the_stream_with_an_error() -> None:
    def is_late(output: SchedulerOutput) -> bool:
        return any(entry.sequence.num_tokens > 5 for entry in output.entries)

    with in_memory(app_of(lambda: failing(make_engine(), is_late))) as client:
        events = events_of(client, BODY | {"max_tokens": 5})
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        whole = client.post(PATH, json=BODY | {"max_tokens": 5})
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "api_error")


class SlowModel(FakeModel):
    """A model each of whose calls takes a while."""

    def hidden_states(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return super().hidden_states(*args, **kwargs)


def test_pings_keep_a_stream_open() -> None:
    with in_memory(app_of(lambda: make_engine(model=SlowModel()), keepalive=0.01)) as client:
        events = events_of(client, BODY | {"max_tokens": 3})
    assert {"type": "ping"} in events
    assert [each for each in events if each["type"] != "ping"][-1]["type"] == "message_stop"
