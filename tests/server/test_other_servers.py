"""Fields of other servers: accepted with their defaults, refused by name otherwise, ignored if unknown."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.testclient import TestClient

from http_server.fields import ChatRequest, OtherServers
from http_server.ignored_fields import HEADER, MAX_NAMES, type_info, unknown_fields
from tests.server.servers import MODEL, app_of, in_memory, on_socket

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "A"}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": MODEL, "prompt": "A", "max_tokens": 1},
    CHAT: {"model": MODEL, "messages": [USER], "max_tokens": 1},
    RESPONSES: {"model": MODEL, "input": "A", "max_output_tokens": 1},
    "/tokenize": {"model": MODEL, "messages": [USER]},
}
SHARED_BY_ROUTERS = {
    "stream": False,
    "no_stop_trim": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "priority": 0,
    "request_id": "r",
}
SENT_BY_CLIENTS: list[tuple[str, dict[str, Any]]] = [
    *((path, SHARED_BY_ROUTERS) for path in (COMPLETIONS, CHAT, RESPONSES)),
    (COMPLETIONS, {"echo": False, "best_of": 1, "n": 1, "add_special_tokens": True, "prompt_embeds": None}),
    (
        CHAT,
        {
            "logprobs": False,
            "top_logprobs": 0,
            "continue_final_message": False,
            "separate_reasoning": True,
            "stream_reasoning": True,
            "include_reasoning": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": True},
            "bad_words": [],
            "session_params": {},
            "prediction": {"type": "content", "content": "B"},
        },
    ),
    (
        RESPONSES,  # Codex
        {
            "tools": [
                {"type": "web_search"},
                {"type": "namespace", "name": "x"},
            ],
            "tool_choice": "auto",
            "include": ["reasoning.encrypted_content"],
            "client_metadata": {"a": "b"},
            "prompt_cache_key": "k",
            "store": False,
            "text": {"verbosity": "low"},
        },
    ),
    (
        RESPONSES,
        {"background": False, "service_tier": "auto", "store": True, "top_logprobs": 0, "truncation": "auto"},
    ),
    ("/tokenize", {"return_token_strs": False, "continue_final_message": False, "add_special_tokens": False}),
]
NOT_DEFAULT: list[tuple[str, str, Any]] = [
    *(
        (path, name, value)
        for path in (COMPLETIONS, CHAT, RESPONSES)
        for name, value in [
            ("use_beam_search", True),
            ("include_stop_str_in_output", True),
            ("return_token_ids", True),
            ("bad_words", ["a"]),
            ("truncate_prompt_tokens", 5),
            ("thinking_token_budget", 5),
            ("guided_json", {"type": "object"}),
            ("regex", "a"),
            ("lora_path", "a"),
            ("vllm_xargs", {"a": 1}),
        ]
    ),
    (CHAT, "stream_reasoning", False),
    (CHAT, "documents", [{"text": "a"}]),
    (CHAT, "chat_template", "a"),
    (COMPLETIONS, "add_special_tokens", False),
    (RESPONSES, "top_logprobs", 3),
    (RESPONSES, "n", 2),
    ("/tokenize", "chat_template", "a"),
    ("/tokenize", "add_special_tokens", True),
]
NESTED = {
    "keep_alive": "5m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "B", "id": "1", "reasoning_details": []},
        {"role": "user", "content": "C", "id": "2"},
    ],
    "stream": True,
    "stream_options": {"foo": 1},
    "response_format": {"type": "text", "bar": {"deep": [1]}},
    "metadata": {"any": "thing"},
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with in_memory(app_of()) as client:
        yield client


@pytest.mark.parametrize(("path", "fields"), SENT_BY_CLIENTS)
def test_what_clients_and_routers_send_is_accepted(
    client: TestClient, path: str, fields: dict[str, Any]
) -> None:
    response = client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    skipped = [f"tools[].type={tool['type']}" for tool in fields.get("tools", [])]
    assert response.headers.get(HEADER, "") == ", ".join(skipped)


@pytest.mark.parametrize(("path", "name", "value"), NOT_DEFAULT)
def test_what_cannot_be_done_is_refused_by_name(client: TestClient, path: str, name: str, value: Any) -> None:
    response = client.post(path, json=BODIES[path] | {name: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == name
    assert name in error["message"]


def test_no_field_of_other_servers_is_read_by_mistake() -> None:
    """Each accepts null, and either any other value or only its default."""
    names = OtherServers.__struct_fields__
    body = {**BODIES[CHAT], **dict.fromkeys(names)}
    assert msgspec.convert(body, ChatRequest) == msgspec.convert(BODIES[CHAT], ChatRequest)


def test_unknown_fields_are_named(client: TestClient) -> None:
    response = client.post(CHAT, json=BODIES[CHAT] | NESTED)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER].split(", ") == [
        "messages[].content[].cache_control",
        "messages[].id",
        "messages[].reasoning_details",
        "keep_alive",
        "stream_options.foo",
        "response_format.bar",
    ]
    assert HEADER not in client.post(CHAT, json=BODIES[CHAT]).headers


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_change_nothing(client: TestClient, path: str) -> None:
    body = BODIES[path] | {"seed": 1} if path != "/tokenize" else BODIES[path]
    plain, other = (client.post(path, json=body | fields) for fields in ({}, {"foo": 1}))
    assert other.status_code == 200, other.text
    assert other.headers[HEADER] == "foo"
    assert plain.json().get("choices") == other.json().get("choices")
    assert plain.json().get("tokens") == other.json().get("tokens")


def test_each_name_is_logged_once(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tiny_llm.server"):
        for _ in range(3):
            client.post(CHAT, json=BODIES[CHAT] | {"logged": 1})
    assert [record.getMessage() for record in caplog.records if "logged" in record.getMessage()] == [
        "ignored the field logged, which this server does not know"
    ]


def test_names_cannot_break_a_header(client: TestClient) -> None:
    names = ["a\r\nSet-Cookie: b", "ключ", "x" * 5000, "", *map(str, range(100))]
    response = client.post(COMPLETIONS, json=BODIES[COMPLETIONS] | dict.fromkeys(names, 1))
    assert response.status_code == 200, response.text
    assert "set-cookie" not in response.headers
    shown = response.headers[HEADER].split(", ")
    assert len(shown) == MAX_NAMES
    assert shown[0] == r"a\r\nSet-Cookie: b"
    assert all(each.isascii() and len(each) <= 64 for each in shown)


@pytest.mark.parametrize("names", [["0", ""], ["", "0"], [" a "], ["\x7f\t "]])
def test_names_leave_every_header_valid(names: list[str]) -> None:
    with on_socket(app_of()) as url:
        response = httpx2.post(f"{url}{CHAT}", json=BODIES[CHAT] | dict.fromkeys(names, 1))
    assert response.status_code == 200
    assert response.headers[HEADER] == response.headers[HEADER].strip() != ""


def test_a_refusal_names_what_was_ignored(client: TestClient) -> None:
    response = client.post(CHAT, json=BODIES[CHAT] | {"foo": 1, "temperature": 0, "priority": 5})
    assert (response.status_code, response.headers[HEADER]) == (400, "foo")


def test_unknown_fields_of_a_union_are_those_of_its_kind() -> None:
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"x": 1}, "extra": 1},
        "schema": {},
    }
    choice = {"type": "function", "function": {"name": "a", "more": 1}}
    body = BODIES[CHAT] | {"response_format": schema, "tool_choice": choice, "stop": ["a"]}
    found = list(unknown_fields(json.loads(json.dumps(body)), type_info(ChatRequest)))
    assert found == [
        "response_format.json_schema.extra",
        "response_format.schema",
        "tool_choice.function.more",
    ]
