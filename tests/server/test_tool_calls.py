"""Tools: what the chat template gets, and calls in answers, whole and streamed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from http_server.json_calls import TaggedJsonCalls
from http_server.pieces import Arguments, Call, Piece, Text
from http_server.text_codec import TextCodec
from kernel_runtime.checkpoint import load_tokenizer
from tests.server.scripted import scripted_app
from tests.server.servers import MODEL, app_of, in_memory

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "How is it?"}],
    "tools": [WEATHER],
    "temperature": 0,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
TWO = f"{CALL}\n{CALL.replace('Ulm', 'Köln')}"
NESTED = '<tool_call>{"name": "weather", "arguments": {"city": ' + "[" * 5000
SHIPPED = Path(__file__).parents[2] / "models" / "qwen3-kjv-4m"
QWEN_STYLE = """
{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{%- endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TURN = [
    {"role": "user", "content": "How is it in Ulm?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
]


def pieces_of(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def arguments_of(pieces: list[Piece]) -> list[str]:
    """The arguments of each call."""
    found: list[str] = []
    for piece in pieces:
        if isinstance(piece, Call):
            found.append("")
        elif isinstance(piece, Arguments):
            found[-1] += piece.text
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "left", "cities"),
    [
        (CALL, "", ["Ulm"]),
        (TWO, "", ["Ulm", "Köln"]),
        (f"Let me see.\n{CALL}", "Let me see.", ["Ulm"]),
        (f"{CALL}\n", "", ["Ulm"]),
        (CALL.replace("Ulm", "<tool_call>"), "", ["<tool_call>"]),
        (f"a <tool b\n<tool_cal {CALL} c", "a <tool b\n<tool_cal  c", ["Ulm"]),
        (CALL.removesuffix("</tool_call>"), "", ["Ulm"]),
        ("<tool_call>nothing</tool_call> more", "<tool_call>nothing</tool_call> more", []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        (CALL[:-30], CALL[:-30], []),
        ("\n\n<tool_call", "\n\n<tool_call", []),
        ("</tool_call>", "</tool_call>", []),
    ],
)
def test_calls_are_separated_from_the_text(text: str, left: str, cities: list[str], size: int) -> None:
    parser = TaggedJsonCalls()
    pieces = [each for piece in pieces_of(text, size) for each in parser.add(piece)] + parser.finish()
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == left
    assert [json.loads(call)["city"] for call in arguments_of(pieces)] == cities
    assert len({piece.id for piece in pieces if isinstance(piece, Call)}) == len(cities)


def test_text_that_cannot_begin_a_call_is_not_held_back() -> None:
    parser = TaggedJsonCalls()
    assert parser.add("one <b") == [Text("one <b")]
    assert parser.add(" <tool") == [Text(" ")]
    assert parser.add("s>\n") == [Text("<tools>")]
    assert parser.finish() == [Text("\n")]


def joined(deltas: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The calls of a stream, put together as clients do."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        if "id" in delta:
            assert delta["index"] not in calls
            assert delta["type"] == "function"
            calls[delta["index"]] = {"name": delta["function"]["name"], "arguments": ""}
        else:
            assert delta.keys() == {"index", "function"}
            assert delta["function"].keys() == {"arguments"}
        calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return list(calls.values())


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize(
    ("text", "content", "num_calls", "fields"),
    [
        (CALL, None, 1, {}),
        (f"I look.\n{CALL}", "I look.", 1, {"logprobs": True}),
        (TWO[:-1], None, 2, {}),
        (TWO, None, 2, {"n": 2}),
        (TWO, None, 1, {"parallel_tool_calls": False}),
        ("No call.", "No call.", 0, {}),
        (CALL, CALL, 0, {"tool_choice": "none"}),
        (CALL, CALL, 0, {"tools": []}),
    ],
)
def test_calls_in_answers(
    text: str, content: str | None, num_calls: int, fields: dict[str, Any], size: int
) -> None:
    size = max(size, -(-len(text) // 59))
    app, tokenizer = scripted_app(text, size)
    with in_memory(app) as client:
        response = client.post(CHAT, json=BODY | fields)
        assert response.status_code == 200, response.text
        assert ("tools" in tokenizer.asked) == (not {"tool_choice", "tools"} & fields.keys())
        streamed = client.post(CHAT, json=BODY | fields | {"stream": True}).text
        chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
        for choice in response.json()["choices"]:
            message = choice["message"]
            assert message["content"] == content
            calls = message.get("tool_calls", [])
            assert [call["function"]["name"] for call in calls] == ["weather"] * num_calls
            assert choice["finish_reason"] == ("tool_calls" if num_calls else "stop")

            mine = [each["choices"][0] for each in chunks if each["choices"][0]["index"] == choice["index"]]
            assert "".join(each["delta"].get("content", "") for each in mine) == (message["content"] or "")
            deltas = [call for each in mine for call in each["delta"].get("tool_calls", [])]
            assert joined(deltas) == [call["function"] for call in calls]
            assert len(deltas) >= num_calls * 4  # the arguments come piece by piece
            assert [call["index"] for call in deltas if "id" in call] == list(range(num_calls))
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            if "logprobs" in fields:
                logprobs = [
                    token for each in mine if each["logprobs"] for token in each["logprobs"]["content"]
                ]
                assert logprobs == choice["logprobs"]["content"]


def test_an_answer_cut_off_in_a_call_ends_by_length() -> None:
    app, _ = scripted_app(CALL, 2)
    with in_memory(app) as client:
        (choice,) = client.post(CHAT, json=BODY | {"max_tokens": 9}).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == CALL[:18]
        assert "tool_calls" not in choice["message"]


def test_an_answer_cut_off_after_a_call_ends_by_length_too() -> None:
    app, _ = scripted_app(f"{CALL} And so on.", 2)
    with in_memory(app) as client:
        (choice,) = client.post(CHAT, json=BODY | {"max_tokens": len(CALL) // 2 + 2}).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert len(choice["message"]["tool_calls"]) == 1


def test_what_the_template_gets() -> None:
    app, tokenizer = scripted_app("Rain.", 2)
    with in_memory(app) as client:
        assert client.post(CHAT, json=BODY | {"messages": TURN}).status_code == 200
    assert tokenizer.asked["tools"] == [WEATHER]
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    assert tokenizer.asked["messages"] == [
        TURN[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "a"},
    ]


def test_a_template_in_the_style_of_qwen() -> None:
    from http_server.conversation import encode_messages
    from http_server.fields import ChatRequest, msgspec

    def load() -> Any:
        tokenizer = load_tokenizer(SHIPPED)
        tokenizer.chat_template = QWEN_STYLE
        return tokenizer

    async def text() -> str:
        codec = TextCodec(load)
        request = msgspec.convert({"model": "m", "messages": TURN, "tools": [WEATHER]}, ChatRequest)
        return await codec.decode(await encode_messages(codec, request.messages, request.tools or ()))

    found = asyncio.run(text())
    assert '"name": "weather", "description": "The weather in a city.", "parameters"' in found
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>' in found
    assert "<tool_response>\nrain\n</tool_response>" in found
    assert found.endswith("<|im_start|>assistant\n")


FUNCTION = WEATHER["function"]
ASSISTANT = TURN[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval", "function": FUNCTION}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]},
            "tools[0].function.strict",
        ),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "news"}}}, "tool_choice"),
        ({"messages": [{**ASSISTANT, "role": "user"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "A", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "b"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        *[
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "tool_calls": [{"id": "a", "function": {"name": "b", "arguments": arguments}}],
                        }
                    ]
                },
                "messages[0].tool_calls[0].function.arguments",
            )
            for arguments in ("[]", "7", "null")
        ],
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    app, _ = scripted_app("Rain.", 2)
    with in_memory(app) as client:
        response = client.post(CHAT, json=BODY | fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text
        assert client.post(CHAT, json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "tools"),
        ({"tools": None, "messages": TURN}, "messages[1]"),
        ({"tools": []}, None),
        ({"tool_choice": "none"}, None),
    ],
)
def test_a_template_without_tools(fields: dict[str, Any], param: str | None) -> None:
    with in_memory(app_of()) as client:
        body = {**BODY, "max_tokens": 1, "messages": [{"role": "user", "content": "A"}], **fields}
        response = client.post(CHAT, json=body)
        assert response.status_code == (400 if param else 200), response.text
        if param:
            assert response.json()["error"]["param"] == param
            assert "chat template" in response.json()["error"]["message"]
