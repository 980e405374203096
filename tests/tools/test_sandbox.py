"""Packages under test run in processes of their own, and none can take the others with it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.author.states import Starter
from scripts.course import ROOT, load_course
from scripts.sandbox import Outcome, Run

pytestmark = pytest.mark.sampled(3, "scripts/sandbox.py", "scripts/author/")

# A process that has not imported tiny_llm, as the commands have not.
PROGRAM = """
import json
from dataclasses import asdict
from pathlib import Path
from scripts.sources.files import read_reference
from scripts.sandbox import Run, run_all

started = []

def run(name, first_line):
    started.append(name)
    sources = read_reference()
    sources[Path("ops/basics.py")] = first_line + sources[Path("ops/basics.py")]
    return Run(name, sources, ["tests/days/test_week_1_day_3.py"])

outcomes = run_all((run(*arguments) for arguments in {arguments}), {num_workers}, {start_method})
print(json.dumps([dict(asdict(outcome), started=list(started)) for outcome in outcomes]))
"""


every_start = pytest.mark.parametrize("start_method", ["fork", "spawn"])


def outcomes_of(
    arguments: list[tuple[str, str]], num_workers: int, start_method: str
) -> list[dict[str, Any]]:
    program = PROGRAM.replace("{arguments}", repr(arguments)).replace("{num_workers}", str(num_workers))
    program = program.replace("{start_method}", repr(start_method))
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(json.loads(result.stdout))


@every_start
def test_the_package_given_is_tested_and_one_that_cannot_be_loaded_is_a_fault(start_method: str) -> None:
    sentence = "week 1 day 3 task 1: mine is not written yet"
    (outcome,) = outcomes_of([("broken", f"raise NotImplementedError({sentence!r})\n")], 1, start_method)
    assert outcome["exit_code"] != 0
    assert sentence in next(iter(outcome["failed"].values()))
    starter = Starter("broken", load_course().days[0], Run("broken", {}, []))
    assert "cannot be loaded" in str(starter.fault(Outcome("broken", failed=outcome["failed"])))
    of_tests = {f"tests/{name}::test_task_1": text for name, text in outcome["failed"].items()}
    assert starter.fault(Outcome("broken", failed=of_tests)) is None


@every_start
def test_a_process_that_dies_is_an_outcome_and_stops_no_other(start_method: str) -> None:
    outcomes = outcomes_of([("dies", "import os; os._exit(3)\n"), ("lives", "")], 2, start_method)
    by_name = {outcome["name"]: outcome for outcome in outcomes}
    sentence = "the process died with exit code 3, in native code perhaps"
    assert by_name["dies"]["failed"] == {"(the run)": sentence}
    assert by_name["lives"]["exit_code"] == 0
    assert by_name["lives"]["passed"]


SECONDS_LEFT_OVER = 300  # in which what is left of a run ends, and half of what it would sleep
INTERRUPTED = """
import sys
from pathlib import Path
from scripts import sandbox
from scripts.sources.files import read_reference
from scripts.sandbox import Run, run_all

sandbox.IN_MEMORY = Path(sys.argv[3])
sources = read_reference()
sources[Path("ops/basics.py")] = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)\\n"
try:
    list(run_all([Run("waits", sources, ["tests/days/test_week_1_day_3.py"])], None, sys.argv[2]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@every_start
def test_ctrl_c_ends_every_process_without_a_traceback(start_method: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    process = interrupted(started, start_method, tmp_path)
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    check_ends_at_once(process, tmp_path)


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.5, 1.0])
def test_ctrl_c_while_a_process_starts_ends_it_without_a_traceback(seconds: float, tmp_path: Path) -> None:
    process = interrupted(tmp_path / "started", "spawn", tmp_path)
    while not list(tmp_path.glob("*/*/tiny_llm/__pycache__/*")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(seconds)
    check_ends_at_once(process, tmp_path)


def interrupted(started: Path, start_method: str, folder: Path) -> "subprocess.Popen[str]":
    """A process that runs a package in another, and keeps it in a folder."""
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(started), start_method, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def check_ends_at_once(process: "subprocess.Popen[str]", folder: Path) -> None:
    """No word, no process and no file is left of a run that was interrupted."""
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate()
    assert (process.returncode, output) == (130, "")
    end = time.monotonic() + SECONDS_LEFT_OVER
    with contextlib.suppress(ProcessLookupError):
        while True:  # Python's own resource tracker ends a moment later
            os.killpg(process.pid, 0)
            assert time.monotonic() < end
            time.sleep(0.05)
    assert [path for path in folder.iterdir() if path.name != "started"] == []


@every_start
def test_no_more_run_at_once_than_there_are_workers(start_method: str) -> None:
    names = ["a", "b", "c"]
    outcomes = outcomes_of([(name, "import os; os._exit(0)\n") for name in names], 1, start_method)
    assert [outcome["started"] for outcome in outcomes] == [names[:1], names[:2], names]


COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "scripts").rglob("*.py")
    if {"run_all(", "typer.run(main)"} <= {*re.findall(r"run_all\(|typer\.run\(main\)", path.read_text())}
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_spawned_process_imports_the_command_and_does_nothing(command: str) -> None:
    program = f"""
import runpy, sys
runpy.run_module("{command}", run_name="__mp_main__")
print("tiny_llm" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr, result.returncode) == ("False\n", "", 0)
