"""Codex CLI, unmodified, with a configuration that names a server of ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import SAMPLED
from tests.clients.node import run
from tests.server.scripted import turns_app
from tests.server.servers import MODEL, on_socket

pytestmark = SAMPLED
CONFIG = """
model = "{model}"
model_provider = "tiny"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.tiny]
name = "tiny-llm"
base_url = "{url}/v1"
wire_api = "responses"
"""
CALL = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd":"touch done"}}\n</tool_call>'
SETTINGS = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]


def codex(url: str, node_folder: Path, tmp_path: Path, model: str = MODEL) -> tuple[list[Any], Path]:
    """The events of a task, and the folder that it worked in."""
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=model, url=url))
    program = node_folder / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
    lines = run(["node", str(program), "exec", *SETTINGS, "Do it."], work, CODEX_HOME=str(home))
    return [json.loads(line) for line in lines.splitlines()], work


def test_a_task_with_a_command(node_folder: Path, tmp_path: Path) -> None:
    """Its prompt is longer than the shipped model can read, so a script answers."""
    app, tokenizer = turns_app(CALL, "It is done.")
    with on_socket(app) as url:
        events, work = codex(url, node_folder, tmp_path)
    assert (work / "done").exists()
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["It is done."]
    assert events[-1]["type"] == "turn.completed"
    assert "exec_command" in {tool["function"]["name"] for tool in tokenizer.asked["tools"]}
    assert [message["role"] for message in tokenizer.asked["messages"][-2:]] == ["assistant", "tool"]


def test_an_unknown_model(node_folder: Path, tmp_path: Path) -> None:
    app, _ = turns_app("Never.")
    with on_socket(app) as url, pytest.raises(AssertionError, match="the model 'gpt-5' does not exist"):
        codex(url, node_folder, tmp_path, "gpt-5")
