"""The learner's daily commands: progress, watch, catch-up, reset."""

import difflib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from scripts.course import ROOT, Day, load_course
from scripts.learn import learner, progress
from scripts.learn.catch_up import catch_up, mixed_classes, task_ids_up_to
from scripts.learn.learner import read_package
from scripts.learn.reset import reset
from scripts.learn.search import steps_after
from scripts.learn.task_state import Written
from scripts.learn.watch import command_line
from scripts.sandbox import Outcome, Run
from scripts.sources.files import Sources, read_reference, write
from scripts.sources.patch import fill
from scripts.sources.render import render
from scripts.sources.symbols import definition_of, holes_of
from tests.support.commands import run, run_apart, use_own_memory
from tests.support.terminals import Terminal

pytestmark = pytest.mark.sampled(3, "scripts/learn/", "scripts/sources/", "course/course.toml")
COURSE = load_course()
ALL_TASKS = {task.id for day in COURSE.days for task in day.tasks}
COMMANDS = ["learn.progress", "learn.watch", "learn.catch_up", "learn.reset", "hardware.doctor"]
MY_SOFTMAX = """    # my own way: é
    e=mx.exp( x )
    return e/ mx.sum(e, axis = axis, keepdims=True)   # \x0c no overflow here
"""


@pytest.fixture(autouse=True)
def _nothing_is_remembered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_memory(tmp_path_factory.mktemp("memory") / "cache", monkeypatch)


def invoke(name: str, *arguments: str) -> Result:
    """A command of the course in this process: for refusals, which come before anything slow."""
    app = typer.Typer()
    app.command()(importlib.import_module(f"scripts.{name}").main)
    return CliRunner().invoke(app, list(arguments))


def marks(package: Path, *days: tuple[int, int]) -> dict[str, list[object]]:
    """Mark, number of tests passed and failed of each task of some days.

    In a new process: this one may have computed with MLX, and must not be forked after that.
    """
    code = f"""
import json
from pathlib import Path
from scripts.course import load_course
from scripts.learn.learner import read_package
from scripts.learn.progress import task_states
days = [load_course().day(*day) for day in {days}]
states = task_states(read_package(Path({str(package)!r})), days)
print(json.dumps({{s.task.id: [s.mark.name, len(s.passed), len(s.failed)] for s in states}}))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found: dict[str, list[object]] = json.loads(result.stdout)
    return found


def with_own_softmax(starter: Sources) -> Sources:
    """A learner's package: softmax written, in a style of their own, with nothing else."""
    path = Path("ops/basics.py")
    hole = '    raise NotImplementedError("week 1 day 1 task 1: softmax is not written yet")\n'
    assert starter[path].count(hole) == 1
    return {**starter, path: starter[path].replace(hole, MY_SOFTMAX)}


def lines_removed(before: str, after: str) -> list[str]:
    """Lines of a source that are not in the other."""
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return [
        line
        for tag, first, last, _, _ in matcher.get_opcodes()
        if tag != "equal"
        for line in before.split("\n")[first:last]
    ]


# progress


def test_progress_of_the_starter_is_not_written_yet(package: Path) -> None:
    assert list(marks(package, (1, 1), (1, 4)).values()) == [["NOT_WRITTEN", 0, 0]] * 5


def test_progress_of_the_starter_runs_no_test(starter: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(runs: list[Run], num_workers: int) -> Iterator[Outcome]:
        pytest.fail(f"it runs {[run.name for run in runs]}")
        yield

    monkeypatch.setattr(progress, "run_all", refuse)
    states = progress.task_states(starter, COURSE.days)
    assert {state.mark.name for state in states} == {"NOT_WRITTEN", "LEFT_OUT"}
    with pytest.raises(pytest.fail.Exception, match=r"it runs \['1.1'\]"):
        progress.task_states(with_own_softmax(starter), COURSE.days)


def test_progress_tells_passed_failing_and_not_written_apart(tmp_path: Path, starter: Sources) -> None:
    sources = read_reference()
    sources[Path("ops/norm.py")] = starter[Path("ops/norm.py")]
    sources[Path("ops/basics.py")] = sources[Path("ops/basics.py")].replace(
        "x * mx.sigmoid(x)", "x + mx.sigmoid(x)"
    )
    write(sources, tmp_path / "tiny_llm")
    found = marks(tmp_path / "tiny_llm", (1, 1), (1, 4))
    assert {task: mark for task, (mark, _, _) in found.items()} == {
        "1.1.1": "PASSED",
        "1.1.2": "PASSED",
        "1.1.3": "PASSED",
        "1.4.1": "NOT_WRITTEN",
        "1.4.2": "FAILING",
    }


def test_progress_names_the_first_unsolved_task_and_its_command(tmp_path: Path, starter: Sources) -> None:
    write(with_own_softmax(starter), tmp_path / "tiny_llm")
    result = run_apart(
        "scripts.learn.progress", "--week", "1", "--day", "1", "--package", str(tmp_path / "tiny_llm")
    )
    assert result.returncode == 0, result.stderr
    assert "✗ 1. Softmax and the linear layer: failing (" in result.stdout
    assert "· 2. Scaled dot-product attention: not written yet\n" in result.stdout
    assert "0 of 3 core tasks solved\n" in result.stdout
    assert "next: week 1 day 1 task 1" in result.stdout
    assert result.stdout.strip().endswith("pdm run test --week 1 --day 1 --task 1")
    assert "\x1b" not in result.stdout + result.stderr


def test_progress_says_why_tests_do_not_load(package: Path) -> None:
    (package / "ops/basics.py").write_text("import no_such_module\n")
    result = run_apart("scripts.learn.progress", "--week", "1", "--day", "1", "--package", str(package))
    assert result.returncode == 0
    assert "its tests do not run: ModuleNotFoundError: No module named 'no_such_module'" in result.stdout


# mistakes


@pytest.mark.parametrize(
    "command",
    [
        ["learn.progress"],
        ["learn.catch_up", "--to", "w1d1"],
        ["learn.reset", "--week", "1", "--day", "1", "--task", "1"],
    ],
    ids=lambda command: command[0],
)
def test_a_syntax_error_is_one_line_with_file_and_line(command: list[str], package: Path) -> None:
    (package / "ops/basics.py").write_text("x = 1\ndef f(:\n    pass\n")
    result = invoke(*command, "--package", str(package))
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.endswith("ops/basics.py, line 2: invalid syntax")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["learn.progress", "--day", "9"], "--day needs --week"),
        (["learn.progress", "--week", "9"], "there is no week 9"),
        (["learn.progress", "--package", "nowhere"], "there is no package in nowhere"),
        (["learn.catch_up", "--to", "day 3"], "--to 'day 3' names no day: write it as w2d1"),
        (["learn.catch_up", "--to", "w1d8"], "week 1 has no day 8"),
        (["learn.reset", "--week", "1", "--day", "1", "--task", "9"], "week 1 day 1 has tasks 1 to 3, not 9"),
        (["learn.watch"], "watch needs a terminal"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout.strip()) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert sentence in line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "pdm run" in result.stdout


def test_a_file_that_is_no_text_is_named(package: Path) -> None:
    (package / "model/mlp.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(ValueError, match=r"mlp\.py is not UTF-8 at byte 5"):
        read_package(package)


# catch-up


def test_catch_up_of_everything_is_the_reference_to_the_byte(starter: Sources) -> None:
    assert catch_up(starter, COURSE, ALL_TASKS) == read_reference()


@pytest.mark.parametrize("day", COURSE.days[::3], ids=lambda day: f"w{day.week}d{day.day}")
def test_catch_up_to_a_day_is_the_package_after_that_day(day: Day, starter: Sources) -> None:
    chosen = task_ids_up_to(COURSE, f"w{day.week}d{day.day}")
    assert catch_up(starter, COURSE, chosen) == render(chosen)


def test_catch_up_keeps_what_the_learner_wrote_byte_for_byte(starter: Sources) -> None:
    before = with_own_softmax(starter)
    after = catch_up(before, COURSE, task_ids_up_to(COURSE, "w1d3"))
    assert MY_SOFTMAX in after[Path("ops/basics.py")]
    assert "def linear" in after[Path("ops/basics.py")]
    for path, source in before.items():
        removed = lines_removed(source, after[path])
        assert all("is not written yet" in line or line.startswith("from .") for line in removed), path


def test_catch_up_keeps_line_ends_and_an_end_without_one(starter: Sources) -> None:
    path = Path("ops/basics.py")
    before = {**starter, path: starter[path].rstrip("\n").replace("\n", "\r\n")}
    after = catch_up(before, COURSE, {"1.1.1"})
    assert re.search(r"[^\r]\n", after[path]) is None
    assert after[path].endswith(before[path][-60:])


def test_catch_up_brings_a_learners_half_of_a_class_to_light(starter: Sources) -> None:
    path = Path("ops/norm.py")
    hole = 'raise NotImplementedError("week 1 day 4 task 1: RMSNorm.__init__ is not written yet")'
    before = {**starter, path: starter[path].replace(hole, "self.mine = weight")}
    after = catch_up(before, COURSE, {"1.4.1"})
    assert "self.mine = weight" in after[path]
    assert "mx.rsqrt" in after[path]
    assert mixed_classes(starter, before, after) == ["RMSNorm"]


def test_catch_up_asks_and_takes_no_for_an_answer(package: Path, starter: Sources) -> None:
    for answer in ("n\n", ""):
        result = run("scripts.learn.catch_up", "--to", "w1d1", "--package", str(package), stdin=answer)
        assert (result.returncode, result.stderr) == (1, "")
        assert "+    product = x @ w.T" in result.stdout
        assert result.stdout.strip().endswith("nothing was changed")
        assert "\x1b" not in result.stdout
    assert read_package(package) == starter
    assert [path.name for path in package.parent.iterdir()] == ["tiny_llm"]


def test_catch_up_without_asking_lists_files_and_no_lines(package: Path) -> None:
    result = run("scripts.learn.catch_up", "--to", "w1d7", "--package", str(package), "--yes")
    assert result.returncode == 0, result.stderr
    *files, summary = result.stdout.splitlines()
    assert all(re.fullmatch(r"tiny_llm/[\w/]+\.py: \+\d+ -\d+", line) for line in files), result.stdout
    assert len(files) > 5
    assert summary.startswith(f"{len(files)} files changed; what was there is in")


def test_catch_up_backs_up_what_it_replaces_and_the_days_then_pass(tmp_path: Path, starter: Sources) -> None:
    package = tmp_path / "tiny_llm"
    before = with_own_softmax(starter)
    before[Path("ops/basics.py")] = before[Path("ops/basics.py")].replace(
        "mx.exp( x )", "mx.exp( x-mx.max(x, axis, True) )"
    )
    write(before, package)
    result = run("scripts.learn.catch_up", "--to", "w1d2", "--package", str(package), stdin="y\n")
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "tiny_llm.backups").iterdir()
    kept = {path.relative_to(folder): path.read_bytes().decode() for path in folder.rglob("*.py")}
    assert set(kept) == {Path("ops/attention.py"), Path("ops/basics.py"), Path("ops/positional_encoding.py")}
    assert all(before[path] == source for path, source in kept.items())
    found = marks(package, (1, 2), (1, 3))
    assert [mark for mark, _, _ in found.values()] == ["PASSED"] * 3 + ["LEFT_OUT"] + ["NOT_WRITTEN"] * 2
    again = run("scripts.learn.catch_up", "--to", "w1d2", "--package", str(package))
    assert (again.returncode, again.stdout.startswith("nothing to fill")) == (0, True)


def test_catch_up_leaves_files_that_the_formatter_does_not_change(tmp_path: Path, starter: Sources) -> None:
    for day in ("w1d4", "w1d7"):
        write(catch_up(starter, COURSE, task_ids_up_to(COURSE, day)), tmp_path / day)
    ruff = [sys.executable, "-m", "ruff", "--config", str(ROOT / "pyproject.toml")]
    for arguments in (["format", "--check"], ["check", "--no-cache", "--select", "F,I"]):
        result = subprocess.run([*ruff, *arguments, str(tmp_path)], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


# reset


def test_reset_of_everything_is_the_starter_to_the_byte(starter: Sources) -> None:
    assert reset(read_reference(), COURSE, ALL_TASKS) == starter


@pytest.mark.parametrize("to", ["w1d1", "w1d2", "w1d3", "w2d6"])
def test_catch_up_and_reset_are_a_round_trip(to: str, starter: Sources) -> None:
    chosen = task_ids_up_to(COURSE, to)
    assert reset(catch_up(starter, COURSE, chosen), COURSE, chosen) == starter


def test_reset_of_one_task_is_the_package_without_its_solution() -> None:
    reference = read_reference()
    for task in sorted(ALL_TASKS)[::18]:
        after = reset(reference, COURSE, {task})
        assert after == render(ALL_TASKS - {task}), task
        assert catch_up(after, COURSE, {task}) == reference, task


def test_reset_puts_one_task_back_and_keeps_the_others(starter: Sources) -> None:
    path = Path("ops/basics.py")
    before = with_own_softmax(catch_up(starter, COURSE, set()))
    before[path] = before[path].replace("def softmax(", "def _mine() -> None: ...\n\n\ndef softmax(")
    after = reset(before, COURSE, {"1.1.1"})
    assert "_mine" in after[path]
    assert set(holes_of(path, after[path])) == {"softmax", "linear", "silu"}
    assert reset(before, COURSE, {"1.4.2"}) == before


def test_removed_functions_are_brought_back(starter: Sources) -> None:
    removed = [
        ("ops/basics.py", "silu"),
        ("ops/basics.py", "softmax"),
        ("scheduling/scheduler.py", "Scheduler.remove"),
    ]
    before = dict(starter)
    for path, name in [(Path(file), name) for file, name in removed]:
        text = definition_of(path, before[path], name)
        assert before[path].count(text) == 1
        before[path] = re.sub(rf"\n*{re.escape(text)}", "\n", before[path])
    assert reset(before, COURSE, {"1.1.1", "1.4.2", "3.1.2"}) == starter
    assert catch_up(before, COURSE, ALL_TASKS) == read_reference()


def test_reset_refuses_a_name_that_is_no_function_any_more(starter: Sources) -> None:
    path = Path("ops/basics.py")
    source = starter[path]
    before = {**starter, path: source[: source.index("def silu")] + "silu = abs\n"}
    with pytest.raises(ValueError, match=r"tiny_llm/ops/basics\.py, silu: it is not a function any more"):
        reset(before, COURSE, {"1.4.2"})


def test_reset_as_a_command(tmp_path: Path, starter: Sources) -> None:
    package = tmp_path / "tiny_llm"
    write(read_reference(), package)
    task = ["--week", "1", "--day", "3", "--task", "1"]
    result = run("scripts.learn.reset", *task, "--package", str(package), "--yes")
    assert result.returncode == 0, result.stderr
    assert re.match(r"tiny_llm/ops/attention\.py: \+\d+ -\d+\n1 file changed;", result.stdout), result.stdout
    assert list(holes_of(Path("ops/attention.py"), (package / "ops/attention.py").read_text())) == [
        "causal_mask"
    ]
    again = run("scripts.learn.reset", *task, "--package", str(package))
    assert again.stdout.startswith("nothing to reset")


# all or nothing


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_nothing_is_half_changed(
    error: BaseException, package: Path, starter: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = catch_up(starter, COURSE, ALL_TASKS)
    replace, calls = os.replace, []

    def fail_later(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) > 2:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_later)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        learner.change(package, starter, after, yes=True)
    assert len(calls) == 3
    assert read_package(package) == starter
    assert sorted(path.name for path in package.parent.iterdir()) == ["tiny_llm", "tiny_llm.backups"]


def test_a_file_saved_meanwhile_is_not_overwritten(package: Path, starter: Sources) -> None:
    (package / "ops/basics.py").write_text("# saved\n")
    with pytest.raises(ValueError, match=r"basics\.py was saved meanwhile"):
        learner.change(package, starter, catch_up(starter, COURSE, {"1.1.1"}), yes=True)
    assert (package / "ops/basics.py").read_text() == "# saved\n"


def test_what_would_not_import_is_not_written(package: Path, starter: Sources) -> None:
    after = {**starter, Path("ops/basics.py"): starter[Path("ops/basics.py")] + "no_such_name\n"}
    with pytest.raises(ValueError, match="would not import, so nothing was changed: NameError"):
        learner.change(package, starter, after, yes=True)
    assert read_package(package) == starter


# What comes along

NO_HOLE = 'raise NotImplementedError("week 1 day 1 task 1: f is not written yet")'


def filled(before: str, donor: str) -> str:
    """A module whose function f, not written yet, is at its end, with the donor's f."""
    start = f"{before}def f() -> object:\n    {NO_HOLE}\n"
    path = Path("m.py")
    return fill({path: start}, {path: start}, {path: donor}, [(path, "f")])[path]


@pytest.mark.parametrize(
    ("before", "imported", "after"),
    [
        ("from .b import y\n", "from .b import x, y", "from .b import x, y\n"),
        ("from .b import y\n", "from .b import x", "from .b import y\nfrom .b import x\n"),
        ("import math\n", "from .b import x", "import math\n\nfrom .b import x\n"),
        ("from .c import y\n", "import math as x", "import math as x\n\nfrom .c import y\n"),
        ('"""Doc."""\n\nX = 1\n', "import math as x", '"""Doc."""\n\nimport math as x\n\nX = 1\n'),
        ('"""Mine."""\n', "import math as x", '"""Mine."""\n\nimport math as x\n'),
        ("from .c import y  # mine\n", "from .b import x", "from .b import x\nfrom .c import y  # mine\n"),
        ("from .b import y  # mine\n", "from .b import A, y, B as x", "from .b import B as x, y  # mine\n"),
        ("from .b import (\n y)\n", "from .b import x, y", "from .b import (\n y)\nfrom .b import x\n"),
        (
            f"from .b import {'y' * 40}, {'z' * 40}\n",
            f"from .b import {'x' * 40} as x, {'y' * 40}, {'z' * 40}",
            f"from .b import (\n    {'x' * 40} as x,\n    {'y' * 40},\n    {'z' * 40},\n)\n",
        ),
    ],
)
def test_an_import_goes_where_it_belongs(before: str, imported: str, after: str) -> None:
    own = imported.startswith("from")
    above, below = ("import math\n\n" if own else "", f"{'' if own else chr(10)}from .c import y\n")
    donor = f'"""Doc."""\n\n{above}{imported}\n{below}\n\ndef f() -> object:\n    return x\n'
    assert filled(f"{before}\n\n", donor) == f"{after}\n\ndef f() -> object:\n    return x\n"


def test_what_bodies_need_comes_along_and_no_more() -> None:
    path = Path("m.py")
    hole = 'raise NotImplementedError("week 1 day 1 task 1: {} is not written yet")'
    donor = (
        "import math\nimport os\n\nA = 1\nB = 2\n\n\ndef f() -> float:\n    return _g() + A\n\n\n"
        "def h() -> str:\n    return os.sep * B\n\n\ndef _g() -> float:\n    return math.pi\n"
    )
    start = f"def f() -> float:\n    {hole.format('f')}\n\n\ndef h() -> str:\n    {hole.format('h')}\n"
    after = fill({path: start}, {path: start}, {path: donor}, [(path, "f")])[path]
    assert "import math\n\nA = 1\n\n\ndef f()" in after
    assert after.endswith("\n\n\ndef _g() -> float:\n    return math.pi\n")
    assert "os" not in after.split()
    assert "B = 2" not in after


@pytest.mark.parametrize(
    ("inside", "is_hole"),
    [
        (NO_HOLE, True),
        (f"# todo\n    {NO_HOLE}  # later", True),
        (f"x = 1\n    {NO_HOLE}", False),
        (f"if x:\n        {NO_HOLE}", False),
        (f"return 3\n    # {NO_HOLE}", False),
    ],
)
def test_only_what_says_nothing_else_is_a_hole(inside: str, is_hole: bool) -> None:
    path, source = Path("m.py"), f"def f() -> int:\n    {inside}\n"
    assert bool(holes_of(path, source)) == is_hole
    donor = "def f() -> int:\n    return 4\n"
    after = fill({path: source}, {path: source}, {path: donor}, [(path, "f")])[path]
    assert ("return 4" in after) == is_hole
    assert all(line in after for line in source.splitlines() if NO_HOLE not in line)


def test_a_class_that_is_not_there_comes_whole() -> None:
    path = Path("m.py")
    donor = (
        '"""Doc."""\n\n\nclass A:\n    """A."""\n\n    size: int = 3\n\n'
        "    def f(self) -> int:\n        return self._g()\n"
        "\n    def _g(self) -> int:\n        return self.size\n\n\nB = 1\n"
    )
    start = '"""Doc."""\n\nB = 1\n'
    half = donor.replace("        return self._g()", f"        {NO_HOLE}").replace(
        donor[donor.index("\n    def _g") : donor.index("\n\nB")], ""
    )
    assert "_g" not in half
    for before in (half, start):
        assert fill({path: before}, {path: half}, {path: donor}, [(path, "A.f")])[path] == donor


# watch

WATCH = """
import sys
from pathlib import Path
from scripts.learn import terminal, watch
from scripts.errors import usage_errors

def command(name, day, task):
    return [sys.executable, "-c", f"print('{name} of', '{task.id}')"]

programs = {
    "solved": "print('{\\"found\\": null}')",
    "searching": "import time; print('{\\"day_solved\\": \\"week 1 day 1\\"}', flush=True); time.sleep(600)",
    "broken": "raise ValueError",
}
search = watch.search_command_line
if len(sys.argv) > 2:
    search = lambda *_: [sys.executable, "-c", programs[sys.argv[2]]]
with usage_errors(), terminal.key_presses():
    watch.Watcher(Path(sys.argv[1]), command, search).loop(terminal.read_key)
"""


@pytest.fixture
def watching(package: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """Watch, in a terminal, a starter; with a parameter, a search that ends as it says, or does not end."""
    started = Terminal(WATCH, str(package), *([request.param] if hasattr(request, "param") else []))
    yield started
    started.close()


def test_watch_tests_on_every_save_and_obeys_its_keys(watching: Terminal, package: Path) -> None:
    watching.wait_for("test of 1.1.1")
    watching.wait_for("q quit")
    (package / "ops/basics.py").write_text((package / "ops/basics.py").read_text() + "\n# saved\n")
    watching.wait_for("test of 1.1.1")
    watching.wait_for("q quit")
    watching.press("h")
    watching.wait_for("hint of 1.1.1")
    watching.press("n")
    watching.wait_for("test of 1.1.2")
    (package / "model/mlp.py").write_text("def f(:\n")
    watching.wait_for("mlp.py, line 1: invalid syntax")
    watching.press("q")
    assert watching.exit_code() == 0


@pytest.mark.parametrize("watching", ["solved"], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_watch_restores_the_terminal_when_it_is_ended(watching: Terminal, number: int, code: int) -> None:
    watching.wait_for("every task is solved")
    watching.process.send_signal(number)
    assert watching.exit_code() == code


@pytest.mark.parametrize("watching", ["searching"], indirect=True)
def test_watch_obeys_its_keys_while_it_searches(watching: Terminal) -> None:
    watching.wait_for("looking for the first unsolved task: week 1 day 1 is solved")
    watching.press("n")
    watching.press("h")
    watching.press("q")
    assert watching.exit_code() == 0


@pytest.mark.parametrize("watching", ["searching"], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_watch_ends_its_search_without_a_traceback(watching: Terminal, number: int, code: int) -> None:
    watching.wait_for("week 1 day 1 is solved")
    watching.process.send_signal(number)
    assert watching.exit_code() == code
    watching.read()
    assert "Traceback" not in watching.text


def test_watch_looks_only_where_it_is_told() -> None:
    code = "import typer; from scripts.learn.watch import main; typer.run(main)"
    skipped = [part for task in COURSE.day(1, 4).tasks for part in ("--skip", f"w1d4t{task.number}")]
    watching = Terminal(code, "--week", "1", "--day", "4", *skipped)
    try:
        watching.wait_for("every task asked for is solved")
        watching.press("q")
        assert watching.exit_code() == 0
    finally:
        watching.close()


@pytest.mark.parametrize("watching", ["broken"], indirect=True)
def test_watch_says_that_its_search_failed(watching: Terminal) -> None:
    watching.wait_for("`pdm run progress` says more")
    watching.press("q")
    assert watching.exit_code() == 0


@pytest.mark.parametrize("name", ["test", "hint"])
def test_watch_runs_commands_that_there_are(name: str) -> None:
    *_, module, _, week, _, day, _, task = command_line(name, COURSE.days[1], COURSE.days[1].tasks[2])
    assert importlib.util.find_spec(module) is not None
    assert (week, day, task) == ("1", "2", "3")


def found_in(package: Path, *options: str) -> list[dict[str, object]]:
    """What the search prints."""
    result = run_apart("scripts.learn.search", "--package", str(package), *options)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_search_goes_day_by_day_and_stops_at_the_first_unsolved_task(tmp_path: Path) -> None:
    sources = read_reference()
    sources[Path("ops/basics.py")] = sources[Path("ops/basics.py")].replace(
        "x * mx.sigmoid(x)", "x + mx.sigmoid(x)"
    )
    write(sources, tmp_path / "tiny_llm")
    solved = [{"day_solved": f"week 1 day {day}"} for day in (1, 2, 3)]
    assert found_in(tmp_path / "tiny_llm") == [*solved, {"found": "1.4.2"}]
    assert found_in(tmp_path / "tiny_llm", "--after", "1.2.4") == [{"found": "1.4.2"}]  # day 3 is remembered


def test_the_search_looks_only_at_what_follows_and_then_from_the_beginning() -> None:
    written = Written("none")
    steps = steps_after(COURSE.days, "1.1.1", written)
    names = [step.name for step in steps]
    assert names[:4] == ["1.1.2", "1.1.3", "1.2.1", "1.3.1"]
    assert names[-1] == "1.1.1"
    assert sorted(task.id for step in steps for task in step.tasks) == sorted(ALL_TASKS)
    assert [step.name for step in steps_after(COURSE.days, None, written)] == [
        day.tasks[0].id for day in COURSE.days
    ]
