"""Prove the states of the course: the starter, the package after each day, whole or core, and each hole."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from scripts.bank.chosen import chosen_since
from scripts.course import ROOT, Course, Day, Gpu, load_course
from scripts.errors import usage_errors
from scripts.sandbox import Outcome, Run, run_all
from scripts.sources.chunks import HOLE
from scripts.sources.render import render


@dataclass(frozen=True)
class State:
    """A stage of the package, the tests it is put to and what must come of them."""

    id: str
    day: Day
    run: Run

    def fault(self, outcome: Outcome) -> str | None:
        """What is wrong with the outcome, or None."""
        raise NotImplementedError


class Starter(State):
    """Nothing solved: every test is found and fails, and says that something is not written yet."""

    def fault(self, outcome: Outcome) -> str | None:
        if outcome.passed:
            return f"{len(outcome.passed)} tests pass unsolved, such as {outcome.passed[0]}"
        for name, message in outcome.failed.items():
            if "::" not in name:
                return f"{name} cannot be loaded, and hides all other days: {last_line(message)}"
            if "is not written yet" not in message:
                return f"{name} fails for another reason: {last_line(message)}"
        return None if outcome.failed else "no test ran"


class AfterDay(State):
    """All tasks of the days so far solved: the tests of the last of these days pass, or those of all.

    A test that passes when only its own and earlier days are solved meets no hole, so that later days can
    change nothing for it but what the whole reference shows. For the same reason, tests that a `Core` state
    runs with less solved are repeated here only in a thorough run.
    """

    def fault(self, outcome: Outcome) -> str | None:
        for name, message in outcome.failed.items():
            return f"{name} needs a later day: {last_line(message)}"
        return None if outcome.passed else "no test ran"


class Core(State):
    """The core tasks of the days so far solved: the tests of the last day's core tasks pass.

    Of a test with several cases, some may stop at a hole of an optional task, which skips them for a learner,
    but not all of them.
    """

    def fault(self, outcome: Outcome) -> str | None:
        passed = {name.partition("[")[0] for name in outcome.passed}
        for name, message in outcome.failed.items():
            if name.partition("[")[0] not in passed or not HOLE.search(message):
                return f"{name} needs an optional task: {last_line(message)}"
        return None if outcome.passed else "no test ran"


class Hole(State):
    """One task unsolved: a test of that task fails."""

    def fault(self, outcome: Outcome) -> str | None:
        return None if outcome.failed else "no test of the task notices that it is not solved"


def last_line(message: str) -> str:
    """Where a message says what is wrong."""
    return message.strip().splitlines()[-1]


def all_states(course: Course, is_thorough: bool = False) -> Iterator[State]:
    """Every state of the map."""
    every_id = [task.id for day in course.days for task in day.tasks]
    for position in range(len(course.days), 0, -1):
        days = course.days[:position]
        solved = {task.id for day in days for task in day.tasks}
        name = f"after week {days[-1].week} day {days[-1].day}"
        if is_thorough or all(task.is_core("none") for day in days for task in day.tasks):
            run = run_of(name, render(solved, course), days if is_thorough else days[-1:])
            yield AfterDay(name, days[-1], run)
        elif numbers := [task.number for task in days[-1].tasks if task.optional]:
            yield AfterDay(name, days[-1], run_of(name, render(solved, course), days[-1:], *only(numbers)))
    yield from core_states(course)
    starter = render((), course)
    for day in course.days:
        name = f"starter, week {day.week} day {day.day}"
        yield Starter(name, day, run_of(name, starter, [day]))
    for day in course.days:
        for task in day.tasks:
            name = f"all but task {task.id}"
            sources = render(set(every_id) - {task.id}, course)
            yield Hole(name, day, run_of(name, sources, [day], "--task", str(task.number), "-x"))


def core_states(course: Course) -> Iterator[State]:
    """After each day from the first optional task on, without a GPU; and each GPU's kernels by themselves."""
    for position, day in reversed(list(enumerate(course.days, start=1))):
        tasks = [task for each in course.days[:position] for task in each.tasks]
        kernels = {task.gpu: task.number for task in day.tasks if task.gpu}
        gpus: list[Gpu] = ["none", *kernels]
        for gpu in gpus:
            core = {task for task in tasks if task.is_core(gpu)}
            if len(core) == len(tasks):
                continue
            name = f"core after week {day.week} day {day.day}, GPU {gpu}"
            numbers = (
                [kernels[gpu]] if gpu in kernels else [each.number for each in day.tasks if each in core]
            )
            run = run_of(name, render({task.id for task in core}, course), [day], *only(numbers))
            yield Core(name, day, run)


def only(numbers: Iterable[int]) -> tuple[str, str]:
    """The option that chooses tests of these tasks of a day."""
    return "-k", " or ".join(f"test_task_{number}_" for number in numbers)


def run_of(name: str, sources: Mapping[Path, str], days: Iterable[Day], *options: str) -> Run:
    """The tests of some days on a stage of the package; nothing is quoted, which would take longest."""
    return Run(name, sources, [str(day.test_file) for day in days], ["--tb=line", *options])


OF_ALL_STATES = {
    "course/course.toml",
    *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("scripts/sources/*.py")),
}

Thorough = Annotated[bool, typer.Option(help="After each day, the tests of all days before it as well.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="COMMIT", help="Only a tenth of the days that no change since then concerns."),
]


def main(thorough: Thorough = False, since: Since = None) -> None:
    """Render the package in every state and run the tests on it.

    Example: pdm run author states --thorough
    """
    with usage_errors():
        every = list(all_states(load_course(), thorough))
        some = every if since is None else chosen_since(since, every, OF_ALL_STATES)
        states = {state.id: state for state in some}
        outcomes = run_all(state.run for state in states.values())
        console = Console(stderr=True)
        faults = [
            f"{outcome.name}: {fault}"
            for outcome in track(outcomes, "states", total=len(states), console=console)
            if (fault := states[outcome.name].fault(outcome))
        ]
    print(
        "\n".join(sorted(faults))
        + "\n" * bool(faults)
        + f"{len(states) - len(faults)} of {len(states)} states hold"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(main)
