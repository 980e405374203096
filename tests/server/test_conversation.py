"""What the chat template gets of a conversation, and which field is named if a message is wrong."""

from typing import Any

import pytest

from tests.server.scripted import ScriptTokenizer, scripted_app
from tests.server.servers import MODEL, in_memory

CHAT = "/v1/chat/completions"
CALLED = {"name": "weather", "arguments": "{}"}


def sent(role: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": "A", **fields}


def seen(role: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": "A", **fields}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (sent("developer"), seen("system")),
        (sent("system", name="S"), seen("system")),
        (sent("assistant", content=None), seen("assistant", content="")),
        (
            sent("user", content=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]),
            seen("user", content="AB"),
        ),
        (sent("assistant", reasoning="R"), seen("assistant", reasoning_content="R")),
        (sent("assistant", reasoning_content="R"), seen("assistant", reasoning_content="R")),
        (sent("assistant", reasoning=""), seen("assistant")),
        (sent("assistant", content=None, refusal="No."), seen("assistant", content="No.")),
        (
            sent("assistant", content=[{"type": "refusal", "refusal": "N"}, {"type": "text", "text": "o"}]),
            seen("assistant", content="No"),
        ),
        (
            sent("assistant", content=[{"type": "thinking", "thinking": "R"}, {"type": "text", "text": "A"}]),
            seen("assistant", reasoning_content="R"),
        ),
        (sent("tool", tool_call_id=""), seen("tool", tool_call_id="")),
        *[
            (
                sent(
                    "assistant",
                    tool_calls=[{"id": "a", "index": 0, "function": {**CALLED, "arguments": text}}],
                ),
                seen(
                    "assistant",
                    tool_calls=[
                        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": given}}
                    ],
                ),
            )
            for text, given in [
                ("", {}),
                (" ", {}),
                ('{"a": 1}', {"a": 1}),
                ('{"a":', '{"a":'),  # an answer that ended in the middle of a call
                ("[" * 100_000, "[" * 100_000),
            ]
        ],
        (sent("assistant", tool_calls=[]), seen("assistant")),
    ],
)
def test_messages(message: dict[str, Any], expected: dict[str, Any]) -> None:
    app, tokenizer = scripted_app("Yes.", 2)
    with in_memory(app) as client:
        response = client.post(CHAT, json={"model": MODEL, "messages": [sent("user"), message]})
    assert response.status_code == 200, response.text
    assert tokenizer.asked["messages"] == [seen("user"), expected]


def test_a_template_that_takes_arguments_apart_gets_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptTokenizer, "chat_template", "{{ tools }} <function=f> <parameter=p>")
    app, tokenizer = scripted_app("Yes.", 2)
    calls = [{"id": "a", "function": {**CALLED, "arguments": text}} for text in ('{"a":', '{"a": 1}')]
    with in_memory(app) as client:
        messages = [sent("user"), sent("assistant", tool_calls=calls)]
        assert client.post(CHAT, json={"model": MODEL, "messages": messages}).status_code == 200
    given = [call["function"]["arguments"] for call in tokenizer.asked["messages"][1]["tool_calls"]]
    assert given == [{"arguments": '{"a":'}, {"a": 1}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (sent("tool", tool_calls=[{"id": "a", "function": CALLED}]), "messages[1].tool_calls"),
        (sent("assistant", tool_call_id="a"), "messages[1].tool_call_id"),
        (sent("user", tool_call_id=""), "messages[1].tool_call_id"),
        (
            sent(
                "assistant",
                tool_calls=[
                    {"id": "a", "function": CALLED},
                    {"id": "b", "function": {**CALLED, "arguments": "[]"}},
                ],
            ),
            "messages[1].tool_calls[1].function.arguments",
        ),
    ],
)
def test_the_field_at_fault(message: dict[str, Any], param: str) -> None:
    app, _ = scripted_app("Yes.", 2)
    with in_memory(app) as client:
        response = client.post(CHAT, json={"model": MODEL, "messages": [sent("user"), message]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
