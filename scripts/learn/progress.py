"""The map of the course with what passes now; tests run only if their outcome is not remembered."""

import contextlib
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import pytest
import typer
from rich.console import Console
from rich.text import Text

from scripts.course import Day, Task, load_course
from scripts.errors import usage_errors
from scripts.learn.learner import PACKAGE, Package, check_syntax, read_package, tasks_with_holes
from scripts.learn.remembered import Memory, Result, day_name
from scripts.learn.speeds import print_speeds
from scripts.sandbox import Outcome, Run, run_all
from scripts.setup import show_progress
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources

MAX_PROCESSES = 2
TEST_NAME = re.compile(r"::test_task_(\d+)_")


class Mark(Enum):
    """What the tests say of a task: its sign, its words and its colour."""

    PASSED = ("✓", "passed", "green")
    FAILING = ("✗", "failing", "red")
    NOT_WRITTEN = ("·", "not written yet", "dim")
    NO_TEST_RAN = ("-", "no test runs on this machine", "dim")


@dataclass(frozen=True)
class TaskState:
    """One task and what became of its tests."""

    day: Day
    task: Task
    passed: tuple[str, ...]
    failed: Mapping[str, str]
    has_holes: bool = False

    @property
    def mark(self) -> Mark:
        """Not written yet if some test passed or failed, and none got further than a hole."""
        if not self.failed:
            return Mark.PASSED if self.passed else Mark.NO_TEST_RAN
        at_holes = all(HOLE.search(message) for message in self.failed.values())
        return Mark.NOT_WRITTEN if at_holes and not self.passed else Mark.FAILING

    @property
    def is_solved(self) -> bool:
        """Nothing is left to do."""
        return not self.failed

    @property
    def waits_for(self) -> str | None:
        """The first function of another task that the tests stop at, if this task's own are all written."""
        found = [HOLE.search(message) for message in self.failed.values()]
        if self.has_holes or not all(found):
            return None
        return min((match[0] for match in found if match), default=None)

    @property
    def test_command(self) -> str:
        """What the learner types to see its failures."""
        return f"pdm run test --week {self.day.week} --day {self.day.day} --task {self.task.number}"


Week = Annotated[int | None, typer.Option(help="Only this week.")]
DayNumber = Annotated[int | None, typer.Option("--day", help="Only this day of the week.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run all tests, whatever is remembered.")]


def main(week: Week = None, day: DayNumber = None, fresh: Fresh = False, package: Package = PACKAGE) -> None:
    """Draw the map of the course with what passes now, and the speed of each day that was measured.

    A test runs again only after a file that it depends on has changed.

    Example: pdm run progress --week 1
    """
    console = Console(highlight=False)
    states: list[TaskState] = []
    with usage_errors():
        days = chosen_days(week, day)
        sources = read_package(package)
        check_syntax(sources, package)
        for of_day in states_by_day(sources, days, Memory(sources, fresh)):
            show_progress("")
            print_day(of_day, console)
            states += of_day
    print_speeds(console)
    print_next(states, console)


def chosen_days(week: int | None, day: int | None) -> tuple[Day, ...]:
    """The days asked for, all unless one says which; ValueError for one that is not there."""
    course = load_course()
    if week is None:
        if day is not None:
            raise ValueError("--day needs --week: give it too, as in --week 1 --day 3")
        return course.days
    return course.week(week) if day is None else (course.day(week, day),)


def task_states(sources: Sources, days: Iterable[Day]) -> list[TaskState]:
    """What the tests say of every task of these days, in order."""
    return [state for states in states_by_day(sources, days) for state in states]


def states_by_day(
    sources: Sources, days: Iterable[Day], memory: Memory | None = None
) -> Iterator[list[TaskState]]:
    """The states of each day's tasks, in order, each day as soon as its outcome is known.

    A day is run as a whole unless all of its tasks are remembered.
    """
    days, unwritten = tuple(days), tasks_with_holes(sources)
    known = {
        day: recalled for day in days if memory and (recalled := recalled_states(day, memory, unwritten))
    }
    runs = [
        Run(day_name(day), sources, [str(day.test_file)], ["--tb=line"]) for day in days if day not in known
    ]
    outcomes: dict[str, Outcome] = {}
    with contextlib.closing(run_all(runs, min(MAX_PROCESSES, os.cpu_count() or 1))) as ended:
        for day in days:
            while day not in known:
                show_progress(bar(day, len(outcomes), len(runs)))
                outcome = next(ended)
                outcomes[outcome.name] = outcome
                tested = next(each for each in days if day_name(each) == outcome.name)
                known[tested] = [
                    state_of(tested, task, outcome, task.id in unwritten) for task in tested.tasks
                ]
                if memory:
                    keep(tested, known[tested], outcome, memory)
            yield known[day]


def recalled_states(day: Day, memory: Memory, unwritten: Container[str]) -> list[TaskState] | None:
    """The states of a day's tasks if all of them are remembered."""
    results = {task: memory.recall(day, task) for task in day.tasks}
    states = [
        TaskState(day, task, result.passed, result.failed, task.id in unwritten)
        for task, result in results.items()
        if result
    ]
    return states if len(states) == len(day.tasks) else None


def keep(day: Day, states: Iterable[TaskState], outcome: Outcome, memory: Memory) -> None:
    """Remember the outcome of a run that was not cut short."""
    is_whole = outcome.exit_code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if is_whole and all(task_of(name) is not None for name in outcome.failed):
        memory.keep(day, {state.task: Result(state.passed, state.failed) for state in states})


def bar(day: Day, num_done: int, num_all: int) -> str:
    """The day that is shown next, and how many have been tested."""
    filled = 20 * num_done // num_all
    where = f"testing week {day.week} day {day.day}"
    return f"{where} [{'#' * filled}{'-' * (20 - filled)}] {num_done} of {num_all} days"


def state_of(day: Day, task: Task, outcome: Outcome, has_holes: bool) -> TaskState:
    """One task's share of the outcome of its day; a test file that does not load fails for every task."""
    return TaskState(
        day,
        task,
        tuple(name for name in outcome.passed if task_of(name) == task.number),
        {name: message for name, message in outcome.failed.items() if task_of(name) in (task.number, None)},
        has_holes,
    )


def task_of(test: str) -> int | None:
    """The number in a test's name, or None."""
    match = TEST_NAME.search(test)
    return int(match[1]) if match else None


def first_unsolved(states: Iterable[TaskState]) -> TaskState | None:
    """The first task that is not solved, in the order of the course."""
    return next((state for state in states if not state.is_solved), None)


def print_day(states: list[TaskState], console: Console) -> None:
    """One line for the day and one a task."""
    day = states[0].day
    title = Text(f"week {day.week} day {day.day}  {day.title}", "bold")
    console.print(title, soft_wrap=True)
    for state in states:
        console.print(task_line(state), soft_wrap=True)


def task_line(state: TaskState) -> Text:
    """Mark, number, title, what the tests say and how many passed."""
    sign, words, style = state.mark.value
    num_tests = len(state.passed) + len(state.failed)
    count = f" ({len(state.passed)} of {num_tests})" if num_tests else ""
    waits = f", since {state.waits_for}" if state.waits_for else ""
    return Text.assemble(
        (f"  {sign} ", style), f"{state.task.number}. {state.task.title}: ", (f"{words}{count}{waits}", style)
    )


def print_next(states: list[TaskState], console: Console) -> None:
    """How much is solved, and the command that tests what is next."""
    solved = sum(state.is_solved for state in states)
    console.print(f"\n{solved} of {len(states)} tasks solved")
    state = first_unsolved(states)
    if state is None:
        return
    console.print(
        f"next: week {state.day.week} day {state.day.day} task {state.task.number}, {state.task.title}: "
        f"{state.test_command}",
        soft_wrap=True,
    )
    if reason := load_error(state):
        console.print(f"its tests do not run: {reason}", soft_wrap=True)


def load_error(state: TaskState) -> str | None:
    """Why a test file does not load, in Python's words, or None."""
    for name, message in state.failed.items():
        if task_of(name) is None:
            lines = [line.removeprefix("E").strip() for line in message.splitlines() if line.strip()]
            return lines[-1] if lines else "no reason was given"
    return None


if __name__ == "__main__":
    typer.run(main)
