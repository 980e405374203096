"""What progress and watch remember: never more than the content it was found for."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.course import ROOT, load_course
from scripts.learn import influences
from scripts.learn.influences import FILES, FOLDERS, Influences, common_digest
from scripts.learn.remembered import FILES_PER_TASK, Memory, Result
from scripts.learn.search import steps_after
from scripts.learn.watch import search_options
from scripts.sources.files import Sources, read_reference, write
from scripts.sources.render import render
from tests.support.commands import run, run_apart, use_own_memory

COURSE = load_course()
DAY = COURSE.day(1, 1)
COUNTED = [
    "course/course.toml",
    "kernel_runtime/emulator/metal.h",
    "models/qwen3-kjv-4m/model.safetensors",
    "pdm.lock",
    "pyproject.toml",
    "scripts/sources/files.py",
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/days/test_week_1_day_1.py",
    "tests/support/check.py",
    "tiny_llm_ref/ops/basics.py",
]
PASSED = Result(("test_task_1_of_day",), {})
ONE_DAY = ["--week", "1", "--day", "1"]


@pytest.fixture(autouse=True)
def memory_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of the test's own."""
    return use_own_memory(tmp_path / "cache", monkeypatch)


@pytest.fixture(scope="module")
def starter() -> Sources:
    return render(())


@pytest.fixture
def package(tmp_path: Path, starter: Sources) -> Path:
    write(starter, tmp_path / "tiny_llm")
    return tmp_path / "tiny_llm"


def lie(sources: Sources, *tasks: int) -> None:
    """Remember tasks of day 1.1 as passed, which no test of the starter could say."""
    Memory(sources).keep(DAY, {DAY.task(number): PASSED for number in tasks})


def changed(sources: Sources, path: str, end: str) -> Sources:
    """The package with lines added to a file."""
    return {**sources, Path(path): sources[Path(path)] + end}


# what counts


@pytest.mark.parametrize("name", COUNTED)
def test_every_file_of_tests_and_tools_counts(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for each in COUNTED:
        write({Path(each): "before"}, root)
    before = common_digest(root)
    assert common_digest(root) == before
    (root / name).write_text("after")
    assert common_digest(root) != before
    (root / name).unlink()
    assert common_digest(root) != before


@pytest.mark.parametrize("name", ["TINY_LLM_THREADS", "MLX_ENABLE_TF32", "CXX", "PYTEST_ADDOPTS"])
def test_switches_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    influences.machine.cache_clear()
    before = influences.machine()
    monkeypatch.setenv(name, "3")
    influences.machine.cache_clear()
    assert influences.machine() != before
    influences.machine.cache_clear()


@pytest.mark.parametrize(
    ("path", "end", "forgotten", "kept"),
    [
        ("ops/basics.py", "\n", [(1, 1), (1, 4), (3, 5)], [(1, 7)]),
        (
            "serving/scheduler.py",
            "\n\ndef mine() -> int:\n    return 3\n",
            [(3, 1), (3, 5)],
            [(1, 1), (2, 7)],
        ),
        ("serving/scheduler.py", "\nmine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("serving/scheduler.py", "\nNUMBER = mine()\n", [(1, 1), (2, 7), (3, 5)], []),
        ("serving/scheduler.py", "\nmx.softmax = None\n", [(1, 1), (2, 7)], []),
        ("kernels/cpu/dequantize.cpp", "\n", [(2, 3), (2, 5)], [(1, 1), (1, 7)]),
        ("__init__.py", "\n", [(1, 1), (1, 7), (3, 5)], []),
    ],
)
def test_a_day_is_forgotten_with_a_file_that_counts(
    path: str, end: str, forgotten: list[tuple[int, int]], kept: list[tuple[int, int]], starter: Sources
) -> None:
    before, after = Influences(starter), Influences(changed(starter, path, end))
    for where in forgotten:
        assert before.digest(COURSE.day(*where)) != after.digest(COURSE.day(*where)), where
    for where in kept:
        assert before.digest(COURSE.day(*where)) == after.digest(COURSE.day(*where)), where


@pytest.mark.parametrize(
    "lines",
    [
        "from ..serving.scheduler import Scheduler\n",
        "from tiny_llm.serving import scheduler\n",
        "from ..serving import (\n    scheduler,\n)\n",
        "from .. import Scheduler\n",
        "from .. import serving\n",
        "import tiny_llm\n",
        "import tiny_llm.ops.norm\n",
        "import tiny_llm.serving.scheduler as other\n",
        "def f():\n    from tiny_llm import Scheduler\n",
        "import importlib\n",
        "def f():\n    return __import__('tiny_llm.serving.scheduler')\n",
        "import sys\n\ndef f():\n    return sys.modules\n",
    ],
)
def test_what_a_module_may_reach_counts(lines: str, starter: Sources) -> None:
    files = Influences(changed(starter, "ops/basics.py", f"\n{lines}")).files(DAY)
    assert "tiny_llm/serving/scheduler.py" in files
    assert "tiny_llm/serving/scheduler.py" not in Influences(starter).files(DAY)


def test_what_runs_at_import_counts_with_all_that_it_imports(starter: Sources) -> None:
    files = Influences(
        changed(starter, "serving/scheduler.py", "\nfrom .priority import mine\n\nmine()\n")
    ).files(DAY)
    assert "tiny_llm/serving/priority.py" in files
    assert "tiny_llm/serving/priority.py" not in Influences(starter).files(DAY)


SPY = """
import json, sys, threading
import pytest
from scripts.course import ROOT
opened, called = set(), set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
def profile(frame, event, arg):
    if event == "call" and frame.f_code.co_flags & 2:
        called.add(frame.f_code.co_filename)
threading.setprofile(profile)
sys.setprofile(profile)
code = pytest.main([*sys.argv[2:], "--ref", "-p", "no:xdist"])
sys.setprofile(None)
json.dump([int(code), sorted(opened), sorted(called)], open(sys.argv[1], "w"))
"""


def test_what_a_day_opens_and_calls_counts(tmp_path: Path) -> None:
    day = COURSE.day(1, 4)
    command = [sys.executable, "-c", SPY, str(tmp_path / "spied"), str(day.test_file)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300)
    code, opened, called = json.loads((tmp_path / "spied").read_text())
    assert code == 0
    counted = Influences(read_reference()).files(day)
    package = {
        path.replace(str(ROOT), "").removeprefix("/tiny_llm_ref/")
        for path in called
        if "/tiny_llm_ref/" in path
    }
    assert package
    assert {f"tiny_llm/{path}" for path in package} <= counted
    sources = {re.sub(r"__pycache__/(\w+)\..*", r"\1.py", path) for path in opened}
    files = {Path(path).relative_to(ROOT).as_posix() for path in sources if path.startswith(f"{ROOT}/")}
    project = {
        path for path in files if re.match(r"(tests|scripts|course|kernel_runtime|models|benches)/", path)
    }
    assert {"tests/conftest.py", "tests/support/check.py", "scripts/packages.py"} <= project
    assert {path for path in project if not path.startswith((*FOLDERS, *FILES))} == set()


# what is kept


@pytest.mark.parametrize(
    ("result", "is_kept"),
    [
        (PASSED, True),
        (Result((), {}), True),
        (Result((), {"t": "NotImplementedError: week 1 day 1 task 1: softmax is not written yet"}), True),
        (Result((), {"t": "AssertionError: 3"}), False),
        (Result(("u",), {"t": "AssertionError: 3"}), False),
        (Result(("u",), {"t": "week 1 day 1 task 1: softmax is not written yet"}), False),
    ],
)
def test_only_what_lasts_is_remembered(result: Result, is_kept: bool, starter: Sources) -> None:
    Memory(starter).keep(DAY, {DAY.task(1): result})
    assert Memory(starter).recall(DAY, DAY.task(1)) == (result if is_kept else None)
    assert Memory(starter).recall(DAY, DAY.task(2)) is None
    assert Memory(starter, is_fresh=True).recall(DAY, DAY.task(1)) is None


def test_another_content_recalls_nothing_and_the_same_again_does(starter: Sources) -> None:
    lie(starter, 1)
    assert Memory(changed(starter, "ops/basics.py", "\n")).recall(DAY, DAY.task(1)) is None
    assert Memory(starter).recall(DAY, DAY.task(1)) == PASSED


def test_nothing_is_recalled_for_a_package_that_does_not_import(starter: Sources) -> None:
    lie(starter, 1)
    broken = changed(starter, "serving/scheduler.py", "\nimport no_such_module\n")
    assert Influences(broken).digest(DAY) == Influences(starter).digest(DAY)
    assert Memory(broken).recall(DAY, DAY.task(1)) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[1]", b'{"value": 3}', b"\xff", b'{"value": 3, "digest": 4}']
)
def test_a_damaged_file_counts_as_missing(content: bytes, starter: Sources, memory_folder: Path) -> None:
    lie(starter, 1)
    for file in memory_folder.iterdir():
        file.write_bytes(content)
    assert Memory(starter).recall(DAY, DAY.task(1)) is None
    lie(starter, 1)
    assert Memory(starter).recall(DAY, DAY.task(1)) == PASSED


def test_a_file_of_another_task_or_content_is_not_believed(starter: Sources, memory_folder: Path) -> None:
    lie(starter, 1)
    (file,) = memory_folder.glob("1.1.1-*")
    file.rename(memory_folder / file.name.replace("1.1.1-", "1.1.2-"))
    assert Memory(starter).recall(DAY, DAY.task(2)) is None


def test_old_files_go_and_nothing_is_left_half_written(starter: Sources, memory_folder: Path) -> None:
    memory = Memory(starter)
    for number in range(FILES_PER_TASK + 3):
        memory.write("1.1.1", str(number), number)
    assert len(list(memory_folder.iterdir())) == FILES_PER_TASK
    assert memory.read("1.1.1", str(FILES_PER_TASK + 2)) == FILES_PER_TASK + 2


def test_without_a_folder_nothing_is_remembered(starter: Sources, memory_folder: Path) -> None:
    memory_folder.write_text("in the way")
    lie(starter, 1)
    assert Memory(starter).recall(DAY, DAY.task(1)) is None


# the commands


def test_progress_shows_what_is_remembered(package: Path, starter: Sources) -> None:
    lie(starter, 1, 2, 3)
    result = run("scripts.learn.progress", *ONE_DAY, "--package", str(package))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("passed (1 of 1)") == 3
    fresh = run_apart("scripts.learn.progress", *ONE_DAY, "--package", str(package), "--fresh")
    assert fresh.stdout.count("not written yet (0 of") == 3
    again = run("scripts.learn.progress", *ONE_DAY, "--package", str(package))
    assert again.stdout == fresh.stdout


def test_progress_runs_what_failed_again(tmp_path: Path) -> None:
    sources = read_reference()
    basics = sources[Path("ops/basics.py")]
    sources[Path("ops/basics.py")] = basics.replace("x * mx.sigmoid(x)", "x + mx.sigmoid(x)")
    write(sources, tmp_path / "tiny_llm")
    day = COURSE.day(1, 4)
    options = ["--week", "1", "--day", "4", "--package", str(tmp_path / "tiny_llm")]
    assert "✗ 2." in run_apart("scripts.learn.progress", *options).stdout
    results = [Memory(sources).recall(day, task) for task in day.tasks]
    assert [result is not None for result in results] == [True, False]


def found(package: Path, *options: str) -> list[dict[str, object]]:
    """What the search prints."""
    result = run_apart("scripts.learn.search", "--package", str(package), *options)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_search_starts_at_the_first_task_not_known_to_pass(package: Path, starter: Sources) -> None:
    lie(starter, 1, 2)
    assert found(package) == [{"found": "1.1.3"}]
    assert found(package, "--after", "1.1.3") == [{"found": "1.2.1"}]
    lie(starter, 3)
    assert found(package, *ONE_DAY) == [{"found": None}]


def test_the_search_finds_at_once_what_is_known_as_unwritten(package: Path, starter: Sources) -> None:
    hole = Result((), {"t": "week 1 day 1 task 1: softmax is not written yet"})
    Memory(starter).keep(DAY, {DAY.task(1): PASSED, DAY.task(2): PASSED, DAY.task(3): hole})
    assert found(package) == [{"found": "1.1.3"}]
    assert found(package, *ONE_DAY, "--skip", "w1d1t3") == [{"found": None}]


def test_the_search_keeps_to_a_day_and_skips_tasks(package: Path) -> None:
    assert found(package, "--week", "2", "--day", "5") == [{"found": "2.5.1"}]
    skip = ["--skip", "w1d4t1"]
    assert found(package, "--week", "1", "--day", "4", *skip) == [{"found": "1.4.2"}]
    assert found(package, "--week", "1", "--day", "4", *skip, "--skip", "w1d4t2") == [{"found": None}]


def test_steps_leave_out_what_is_known() -> None:
    names = [step.name for step in steps_after(COURSE.days, "1.1.1", {"1.1.2", "1.2.1"})]
    assert names[:3] == ["1.1.3", "1.2.2", "1.2.3"]


def test_watch_hands_on_what_it_is_told() -> None:
    assert search_options(2, 5, ["w2d5t3", "w2d5t1"]) == [
        *("--week", "2", "--day", "5", "--skip", "w2d5t3", "--skip", "w2d5t1")
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--skip", "2.5.3"], "--skip '2.5.3' names no task: write it as w2d5t3"),
        (["--skip", "w2d5t99"], "week 2 day 5 has tasks 1 to"),
        (["--day", "3"], "--day needs --week"),
        (["--week", "9"], "there is no week 9"),
    ],
)
def test_watch_refuses_what_is_not_there(arguments: list[str], sentence: str) -> None:
    result = run("scripts.learn.watch", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr
