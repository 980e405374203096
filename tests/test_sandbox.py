"""Packages under test run in processes of their own, and none can take the others with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scripts.course import ROOT
from scripts.sandbox import Outcome, Run
from scripts.states import Starter

# A process that has not imported tiny_llm, as the commands have not.
PROGRAM = """
import json
from dataclasses import asdict
from pathlib import Path
from scripts.render import read_reference
from scripts.sandbox import Run, run_all

started = []

def run(name, first_line):
    started.append(name)
    sources = read_reference()
    sources[Path("basics.py")] = first_line + sources[Path("basics.py")]
    return Run(name, sources, ["tests/test_week_1_day_3.py"])

outcomes = run_all((run(*arguments) for arguments in {arguments}), num_workers={num_workers})
print(json.dumps([dict(asdict(outcome), started=list(started)) for outcome in outcomes]))
"""


def outcomes_of(arguments: list[tuple[str, str]], num_workers: int) -> list[dict[str, Any]]:
    program = PROGRAM.replace("{arguments}", repr(arguments)).replace("{num_workers}", str(num_workers))
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(json.loads(result.stdout))


def test_the_package_given_is_tested_and_one_that_cannot_be_loaded_is_a_fault() -> None:
    sentence = "week 1 day 3 task 1: mine is not written yet"
    (outcome,) = outcomes_of([("broken", f"raise NotImplementedError({sentence!r})\n")], num_workers=1)
    assert outcome["exit_code"] != 0
    assert sentence in next(iter(outcome["failed"].values()))
    starter = Starter("broken", Run("broken", {}, []))
    assert "cannot be loaded" in str(starter.fault(Outcome("broken", failed=outcome["failed"])))
    of_tests = {f"tests/{name}::test_task_1": text for name, text in outcome["failed"].items()}
    assert starter.fault(Outcome("broken", failed=of_tests)) is None


def test_a_process_that_dies_is_an_outcome_and_stops_no_other() -> None:
    outcomes = outcomes_of([("dies", "import os; os._exit(3)\n"), ("lives", "")], num_workers=2)
    by_name = {outcome["name"]: outcome for outcome in outcomes}
    sentence = "the process died with exit code 3, in native code perhaps"
    assert by_name["dies"]["failed"] == {"(the run)": sentence}
    assert by_name["lives"]["exit_code"] == 0
    assert by_name["lives"]["passed"]


INTERRUPTED = """
import sys
from pathlib import Path
from scripts.render import read_reference
from scripts.sandbox import Run, run_all

sources = read_reference()
sources[Path("basics.py")] = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)\\n"
try:
    list(run_all([Run("waits", sources, ["tests/test_week_1_day_3.py"])]))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_every_process_without_a_traceback(tmp_path: Path) -> None:
    started = tmp_path / "started"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(started)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")


def test_no_more_run_at_once_than_there_are_workers() -> None:
    names = ["a", "b", "c"]
    outcomes = outcomes_of([(name, "import os; os._exit(0)\n") for name in names], num_workers=1)
    assert [outcome["started"] for outcome in outcomes] == [names[:1], names[:2], names]
