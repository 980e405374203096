"""Run the tests of the whole course, a week, a day or a task."""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.course import ROOT, Course, Gpu, load_course
from scripts.errors import usage_errors
from scripts.learn.crashes import FOLDER, SIGNALS, add_crash, read_crash
from scripts.learn.optional import chosen_gpu
from scripts.learn.pytest_process import NO_PLUGINS, wait_for
from scripts.learn.speeds import COMMAND, FIRST_DAY
from scripts.packages import choose_package

MAX_CRASHES = 10
MOST_WORKERS = 4  # each takes half a gigabyte

Week = Annotated[int | None, typer.Option(help="Only this week.")]
Day = Annotated[int | None, typer.Option(help="Only this day of the week.")]
TaskNumber = Annotated[int | None, typer.Option(help="Only this task of the day.")]
Ref = Annotated[bool, typer.Option("--ref", help="Test tiny_llm_ref, the finished solution.")]
ShowAll = Annotated[
    bool, typer.Option("--all", help="Show every failure, not only the first unsolved task's.")
]
PytestArgs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- PYTEST OPTIONS]", help="Passed on to pytest, such as: -- -k words"),
]


def main(
    week: Week = None,
    day: Day = None,
    task: TaskNumber = None,
    ref: Ref = False,
    show_all: ShowAll = False,
    pytest_args: PytestArgs = None,
) -> None:
    """Run tests of your package, or of the reference with --ref. The exit code is pytest's own.

    Of an optional task, tests are skipped until you write a function of it or ask for it with --task.
    A test in which compiled code crashes fails, and the others of its task that follow are not run.

    Example: pdm run test --week 2 --day 7 --task 2 --ref -- -x
    """
    with usage_errors():
        selection = select_tests(week, day, task)
        choose_package(ref)
    options = [*(["--ref"] if ref else ["--gpu", chosen_gpu()]), *(["--all"] if show_all else [])]
    if ref and task is None and not pytest_args:
        options += workers()
    exit_code = run_pytest([*selection, *options, *(pytest_args or [])])
    if exit_code == 0 and week is not None and day is not None and not (ref or pytest_args):
        print("\n".join(what_is_next(load_course(), week, day, task, chosen_gpu())))
    sys.exit(exit_code)


def workers() -> list[str]:
    """Options that divide the tests among processes, which pays where they run for minutes."""
    return ["-p", "xdist", "-n", str(min(MOST_WORKERS, os.cpu_count() or 1)), "--dist", "worksteal"]


def run_pytest(arguments: Sequence[str]) -> int:
    """The exit code of pytest, in a process of its own, which a crash in compiled code may end.

    It is then started again, with the crash as the failure of its test, at most once for each task.
    """
    command = [sys.executable, "-m", "pytest", "-p", "hypothesispytest", *arguments]
    if "xdist" not in arguments:  # which starts a process that crashed again itself
        command += ["-p", "no:faulthandler", "-p", "tests.support.crashes"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, FOLDER: folder, NO_PLUGINS: "1"}
        for _ in range(MAX_CRASHES):
            exit_code = wait_for(command, environment, Path(folder))
            if exit_code >= 0:
                return exit_code
            name = signal.Signals(-exit_code).name
            crash = read_crash(Path(folder), name) if -exit_code in SIGNALS else None
            if crash is None:
                break
            print(f"\n{crash.test} ended the process with {name}: once more, without it\n", flush=True)
            add_crash(Path(folder), crash)
    print(f"\nThe tests were ended by {name}. `-- -k NAME` runs one test alone, `-- -v` names each.")
    return 128 - exit_code


def what_is_next(course: Course, week: int, day: int, task: int | None, gpu: Gpu) -> list[str]:
    """The core task after a task or day, with its command; after a day the command for its number too."""
    tasks = [(each, part) for each in course.days for part in each.tasks if part.is_core(gpu)]
    solved = (week, day, task if task is not None else len(course.day(week, day).tasks))
    later = ((d, t) for d, t in tasks if (d.week, d.day, t.number) > solved)
    lines = [
        f"next: week {d.week} day {d.day} task {t.number}, {t.title}: "
        f"pdm run test --week {d.week} --day {d.day} --task {t.number}"
        for d, t in islice(later, 1)
    ]
    last = max(part.number for part in course.day(week, day).tasks if part.is_core(gpu))
    if solved[2] >= last and (week, day) >= FIRST_DAY:
        lines.append(f"how fast is it now? {COMMAND}")
    return lines


def select_tests(week: int | None, day: int | None, task: int | None) -> list[str]:
    """Arguments that make pytest run these tests; ValueError for a week, day or task that is not there."""
    course = load_course()
    if week is None:
        if day is not None or task is not None:
            raise ValueError("--day and --task need --week: give it too, as in --week 1 --day 3")
        return [str(ROOT / "tests")]
    if day is None:
        if task is not None:
            raise ValueError(f"--task needs --day: give it too, as in --week {week} --day 1 --task {task}")
        return [str(each.test_file) for each in course.week(week)]
    chosen = course.day(week, day)
    if task is None:
        return [str(chosen.test_file)]
    return [str(chosen.test_file), "--task", str(chosen.task(task).number)]


if __name__ == "__main__":
    run_command(main, "test")
