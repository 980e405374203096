"""OpenAI's client for JavaScript, unmodified, against a server with the shipped model."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.clients import SAMPLED
from tests.clients.node import FOLDER, run
from tests.clients.serving import MODEL, expected
from tests.server.servers import wait_for

pytestmark = SAMPLED


@pytest.fixture(scope="module")
def got(url: str, node_folder: Path) -> dict[str, Any]:
    """What the client got."""
    answer: dict[str, Any] = json.loads(run(["node", "client.mjs", f"{url}/v1", MODEL.name], node_folder))
    return answer


def test_models(got: dict[str, Any]) -> None:
    assert got["models"] == [MODEL.name]


def test_completions(got: dict[str, Any]) -> None:
    assert got["whole"]["text"] == got["streamed"]["text"] == expected("In the beginning", 24)
    assert got["whole"]["usage"]["completion_tokens"] == 24


def test_chat(got: dict[str, Any]) -> None:
    chat, streamed = got["chat"], got["streamedChat"]
    assert chat["role"] == "assistant"
    assert chat["text"] == streamed["text"] == streamed["final"]
    assert chat["logprobs"] == chat["usage"]["completion_tokens"]
    assert streamed["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


def test_responses(got: dict[str, Any]) -> None:
    assert got["responses"]["text"] == got["responses"]["pieces"]
    assert got["responses"]["last"] in ("response.completed", "response.incomplete")


def test_structured_output(got: dict[str, Any]) -> None:
    assert got["structured"] in ({"land": "Judah"}, {"land": "Israel"})


def test_a_stream_that_is_aborted(got: dict[str, Any], url: str) -> None:
    assert got["aborted"]["chunks"] == 3

    def is_idle() -> bool:
        lines = httpx2.get(f"{url}/metrics").text.splitlines()
        return any(line.startswith("vllm:num_requests_running") and line.endswith(" 0.0") for line in lines)

    wait_for(is_idle, "the end of the aborted request")


@pytest.mark.parametrize(
    ("case", "name", "status", "param"),
    [
        ("unknownModel", "NotFoundError", 404, "model"),
        ("wrongField", "BadRequestError", 400, "temperature"),
        ("wrongStream", "BadRequestError", 400, "n"),
    ],
)
def test_errors(got: dict[str, Any], case: str, name: str, status: int, param: str) -> None:
    error = got[case]
    assert (error["name"], error["status"], error["param"]) == (name, status, param)


def test_the_lock_file_names_no_registry() -> None:
    assert "://" not in (FOLDER / "package-lock.json").read_text()
