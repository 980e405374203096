"""Every benchmark measures the learner's package, as far as it is written."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

from benches.commands import app
from scripts.course import ROOT, load_course
from scripts.learn.kept import kept
from scripts.learn.speeds import WIDTH
from scripts.packages import OF_LEARNER
from scripts.sources.chunks import HOLE
from scripts.sources.files import write
from scripts.sources.render import render
from tests.support.checkpoints import save_small_model
from tests.support.commands import use_own_memory

pytestmark = pytest.mark.sampled(3, "benches/")
ONCE = "--repeats 1"
SHORT = {
    "serving": f"--requests 4 {ONCE} --rate 50 --side 'one budget' --side 'three phases'",
    "server": f"--seconds 1 --hold 1 --num-requests 2 --highest 3 --side 'one budget' {ONCE}",
    "growth": f"--length 5 --tokens 2 {ONCE}",
    "context": f"--steps 1 {ONCE}",
    "long": f"--length 70 --chunk 32 --side blocks {ONCE}",
    "bandwidth": f"--context-length 5 --max-tokens 1 {ONCE}",
    "matmul": f"--rows 1 --inputs 128 --outputs 7 {ONCE}",
    "flash": f"--length 33 --heads 2 --kv-heads 1 --head-dim 32 {ONCE}",
    "dispatches": "",
    "parts": f"--context 9 {ONCE}",
    "chunking": f"--max-tokens 2 {ONCE}",
    "budget": f"--max-tokens 2 {ONCE}",
    "scheduler": "--running 5 --waiting 3 --steps 7",
    "blocks": "--block-size 64 --requests 20 --slots 3",
    "mixed": f"--decodes 2 --context 9 {ONCE}",
    "sampling": f"--no-random {ONCE}",
    "prefix": f"--users 2 --turns 2 --system 33 --question 5 --answer 3 {ONCE}",
    "kept": f"--tokens 20 {ONCE}",
    "pressure": "--blocks 60 --copies 1 --max-tokens 2",
    "speculation": f"--batch 2 --max-tokens 10 {ONCE}",
    "kv": f"--tokens 64 --texts 1 --batch 2 {ONCE}",
    "experts": f"--max-tokens 2 {ONCE}",
    "ranks": f"--max-tokens 2 {ONCE}",
    "routing": "--users 2 --turns 2",
    "structured": f"--batch 2 --max-tokens 4 {ONCE}",
}
"""Every benchmark but `race`, with options that make it short."""
WITHOUT_MODEL = ("matmul", "flash", "scheduler", "experts", "ranks", "routing")
TASKS = {task.id: task for day in load_course().days for task in day.tasks}
OPTIONAL = {id for id, task in TASKS.items() if not task.is_core("none")}
RUN_ALL = """
import json, shlex, sys
from typer.testing import CliRunner
from benches import capacity
from benches.commands import app

capacity.NUM_REQUESTS = 20
answers = {}
for name, options in json.load(sys.stdin).items():
    result = CliRunner().invoke(app, [name, "--mine", *shlex.split(options)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    answers[name] = [result.exit_code, result.stdout, result.stderr]
json.dump(answers, sys.stdout)
"""


def up_to(last_task: str) -> set[str]:
    """Ids of the tasks up to one."""
    ids = [*TASKS]
    return set(ids[: ids.index(last_task) + 1])


def run_all(
    folder: Path, solved: Collection[str], names: Iterable[str] = SHORT
) -> dict[str, tuple[int, str, str]]:
    """Exit code and output of each benchmark on the package with some tasks solved, all in one process."""
    write(render(solved), folder / "tiny_llm")
    model = f"--model {save_small_model(folder / 'model')} "
    options = {
        name: model * (name not in WITHOUT_MODEL) + more for name, more in SHORT.items() if name in names
    }
    result = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), OF_LEARNER: "1", "TINY_LLM_KERNELS": "own"},
        input=json.dumps(options),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return {name: tuple(answer) for name, answer in json.loads(result.stdout).items()}


@pytest.mark.parametrize(
    "left_out",
    [pytest.param(set(), id="all"), pytest.param(OPTIONAL, id="core", marks=pytest.mark.sampled(6))],
)
def test_every_benchmark_measures_the_learners_package(left_out: set[str], tmp_path: Path) -> None:
    answers = run_all(tmp_path, TASKS.keys() - left_out)
    assert answers.keys() == {command.name for command in app.registered_commands} - {"race"}
    assert {name: error for name, (code, _, error) in answers.items() if code} == {}
    assert {".".join(hole[:3]) for hole in HOLE.findall(str(answers))} <= left_out


def test_what_is_not_written_yet_is_left_out_or_named(tmp_path: Path) -> None:
    answers = run_all(tmp_path, up_to("3.1.7"), ["flash", "scheduler", "mixed"])
    codes, outputs, errors = ({name: each[i] for name, each in answers.items()} for i in range(3))
    assert codes == {"flash": 0, "scheduler": 0, "mixed": 2}
    hole = r"week 3 day 2 task \d: \S+ is not written yet\n"
    assert re.search(f"^without BlockManager: {hole}", errors["scheduler"], re.M)
    assert "no blocks" in outputs["scheduler"]
    assert "BlockManager" not in outputs["scheduler"]
    assert re.fullmatch(f"error: your package cannot run yet: {hole}", errors["mixed"])


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which finds the package of a folder."""
    command, env = [sys.executable, "-m", "benches", *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["", "growth"])
def test_it_is_the_learners_package_that_is_measured(name: str, tmp_path: Path) -> None:
    write(render(up_to("1.4.2")), tmp_path / "tiny_llm")
    result = bench(tmp_path, *name.split(), "--mine")
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"error: .*: week 1 day 5 task \d: \S+ is not written yet\n", result.stderr)


def test_the_number_of_a_day_is_kept_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_memory(tmp_path / "cache", monkeypatch)
    kept("speeds").put("1.6", {"prefill": 800.0, "decode": 9.0, "8 requests": 0.0})
    kept("speeds").put("1.7", "damaged")
    write(render(up_to("2.1.3")), tmp_path / "tiny_llm")
    result = bench(tmp_path, "--mine", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    speeds = kept("speeds").read()["2.1"]
    assert isinstance(speeds, dict)
    assert list(speeds) == ["prefill", "decode", "8 requests"]
    numbers = [f"{speed:,.0f}" for speed in speeds.values()]
    _, _, *rows = result.stdout.split("by `pdm run bench --mine`:")[1].splitlines()
    assert [row.split()[:4] for row in rows[:2]] == [["1.6", "800", "9", "0"], ["2.1", *numbers]]
    assert (rows[0].count("█"), rows[1].count("█")) == (0, WIDTH)
    assert len(rows) == 3, "damaged numbers have no bar"
