"""Vercel's AI SDK, unmodified: against a server with the shipped model, and one that calls a tool."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import SAMPLED
from tests.clients.node import run
from tests.clients.serving import MODEL, expected
from tests.server.scripted import turns_app
from tests.server.servers import MODEL as FAKE
from tests.server.servers import on_socket

pytestmark = SAMPLED
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Ulm"}}\n</tool_call>'
PROMPT = "<|im_start|>user\nWho made the world?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def got(url: str, node_folder: Path) -> dict[str, Any]:
    """What the client got."""
    app, _ = turns_app(CALL, "It rains.")
    with on_socket(app) as tools_url:
        command = ["node", "ai.mjs", f"{url}/v1", MODEL.name, f"{tools_url}/v1", FAKE]
        answer: dict[str, Any] = json.loads(run(command, node_folder))
    return answer


def test_text(got: dict[str, Any]) -> None:
    assert got["whole"]["text"] == got["streamed"]["text"] == expected(PROMPT, 300)
    assert got["whole"]["finishReason"] == "stop"
    assert got["whole"]["usage"]["totalTokens"] == got["whole"]["usage"]["raw"]["total_tokens"]


def test_structured_output(got: dict[str, Any]) -> None:
    assert got["structured"] in ({"land": "Judah"}, {"land": "Israel"})


def test_tools(got: dict[str, Any]) -> None:
    assert got["tools"] == got["streamedTools"] == {"text": "It rains.", "asked": ["Ulm"]}


def test_an_unknown_model(got: dict[str, Any]) -> None:
    error = got["unknownModel"]
    assert (error["name"], error["status"]) == ("AI_APICallError", 404)
    assert "gpt-5" in error["message"]
