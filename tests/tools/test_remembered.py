"""What progress and watch remember holds for exactly the content that was tested."""

import json
from pathlib import Path

import pytest

from scripts.course import load_course
from scripts.learn.dependencies import Dependencies
from scripts.learn.remembered import FILES_PER_TASK, Memory
from scripts.learn.search import steps_after
from scripts.learn.task_state import Written
from scripts.learn.watch import search_options
from scripts.sources.files import Sources, read_reference, write
from tests.support.commands import run, run_apart, use_own_memory

pytestmark = pytest.mark.sampled(3, "scripts/learn/")
COURSE = load_course()
DAY = COURSE.day(1, 1)
PASSED = ["test_task_1_of_day"]
ALL_WRITTEN = Written("none")
ONE_DAY = ["--week", "1", "--day", "1"]


@pytest.fixture(autouse=True)
def memory_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate memory for each test."""
    return use_own_memory(tmp_path / "cache", monkeypatch)


def lie(sources: Sources, *tasks: int) -> None:
    """Remember tasks of day 1.1 as passed, which no test of the starter could say."""
    Memory(sources).keep(DAY, {DAY.task(number): PASSED for number in tasks})


def changed(sources: Sources, path: str, end: str) -> Sources:
    """The package with lines added to a file."""
    return {**sources, Path(path): sources[Path(path)] + end}


# what is kept


@pytest.mark.parametrize("passed", [PASSED, []], ids=["some", "no test on this machine"])
def test_what_passed_is_remembered(passed: list[str], starter: Sources) -> None:
    Memory(starter).keep(DAY, {DAY.task(1): passed})
    assert Memory(starter).recall(DAY, DAY.task(1)) == passed
    assert Memory(starter).recall(DAY, DAY.task(2)) is None
    assert Memory(starter, is_fresh=True).recall(DAY, DAY.task(1)) is None


def test_nothing_is_kept_of_tests_that_changed_while_they_ran(starter: Sources, memory_folder: Path) -> None:
    memory = Memory(starter)
    memory.common = "the digest before an edit"
    memory.keep(DAY, {DAY.task(1): PASSED})
    assert list(memory_folder.glob("1.1.1-*")) == []


def test_another_content_recalls_nothing_and_the_same_again_does(starter: Sources) -> None:
    lie(starter, 1)
    assert Memory(changed(starter, "ops/basics.py", "\n")).recall(DAY, DAY.task(1)) is None
    assert Memory(starter).recall(DAY, DAY.task(1)) == PASSED


def test_nothing_is_recalled_for_a_package_that_does_not_import(starter: Sources) -> None:
    lie(starter, 1)
    broken = changed(starter, "scheduling/scheduler.py", "\nimport no_such_module\n")
    assert Dependencies(broken).digest(DAY) == Dependencies(starter).digest(DAY)
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


def test_progress_shows_what_is_remembered(tmp_path: Path) -> None:
    sources = read_reference()
    write(sources, tmp_path / "tiny_llm")
    lie(sources, 1, 2, 3)
    options = [*ONE_DAY, "--package", str(tmp_path / "tiny_llm")]
    result = run("scripts.learn.progress", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("passed (1 of 1)") == 3
    fresh = run_apart("scripts.learn.progress", *options, "--fresh")
    assert fresh.stdout.count("passed (") == 3
    assert "(1 of 1)" not in fresh.stdout
    assert run("scripts.learn.progress", *options).stdout == fresh.stdout


def test_progress_runs_what_failed_again(tmp_path: Path) -> None:
    sources = read_reference()
    basics = sources[Path("ops/basics.py")]
    sources[Path("ops/basics.py")] = basics.replace("x * mx.sigmoid(x)", "x + mx.sigmoid(x)")
    write(sources, tmp_path / "tiny_llm")
    day = COURSE.day(1, 4)
    options = ["--week", "1", "--day", "4", "--package", str(tmp_path / "tiny_llm")]
    first = run_apart("scripts.learn.progress", *options).stdout
    assert "✗ 2." in first
    assert run_apart("scripts.learn.progress", *options).stdout == first
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
    assert found(package, *ONE_DAY, "--skip", "w1d1t3") == [{"found": None}]
    assert found(package, "--after", "1.1.3") == [{"found": "1.2.1"}]
    lie(starter, 3)
    assert found(package, *ONE_DAY) == [{"found": None}]


def test_the_search_takes_a_task_with_a_hole_for_unsolved_without_its_tests(tmp_path: Path) -> None:
    hole = (
        '\n\ndef spare():\n    raise NotImplementedError("week 1 day 1 task 2: spare is not written yet")\n'
    )
    sources = changed(read_reference(), "ops/basics.py", hole)  # which every test passes
    write(sources, tmp_path / "tiny_llm")
    lie(sources, 1)
    assert found(tmp_path / "tiny_llm", *ONE_DAY) == [{"found": "1.1.2"}]
    assert found(tmp_path / "tiny_llm", *ONE_DAY, "--skip", "w1d1t2") == [
        {"day_solved": "week 1 day 1"},
        {"found": None},
    ]


def test_the_search_keeps_to_a_day_and_skips_tasks(package: Path) -> None:
    assert found(package, "--week", "2", "--day", "5") == [{"found": "2.5.1"}]
    skip = ["--skip", "w1d4t1"]
    assert found(package, "--week", "1", "--day", "4", *skip) == [{"found": "1.4.2"}]
    assert found(package, "--week", "1", "--day", "4", *skip, "--skip", "w1d4t2") == [{"found": None}]


def test_the_search_remembers_a_day_that_passed(tmp_path: Path) -> None:
    sources = read_reference()
    write(sources, tmp_path / "tiny_llm")
    assert found(tmp_path / "tiny_llm", *ONE_DAY) == [{"day_solved": "week 1 day 1"}, {"found": None}]
    assert all(Memory(sources).recall(DAY, task) for task in DAY.tasks)


def test_steps_leave_out_what_is_known() -> None:
    names = [step.name for step in steps_after(COURSE.days, "1.1.1", ALL_WRITTEN, {"1.1.2", "1.2.1"})]
    assert names[:3] == ["1.1.3", "1.2.2", "1.2.3"]


def test_watch_passes_its_options_to_the_search() -> None:
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
