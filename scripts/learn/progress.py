"""The engine, lit by what passes now, and tasks; tests run only if their outcome is not remembered."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scripts.command import run_command
from scripts.course import Day, load_course
from scripts.errors import usage_errors
from scripts.learn.engine_lines import engine_lines
from scripts.learn.learner import PACKAGE, Package, check_syntax, import_error, read_package
from scripts.learn.optional import choose_gpu, chosen_gpu, remembered_gpu
from scripts.learn.remembered import Memory, day_name
from scripts.learn.speeds import print_speeds
from scripts.learn.task_state import TaskState, Written, task_of
from scripts.sandbox import Outcome, Run, run_all
from scripts.sources.files import Sources
from scripts.waiting import show_progress

MAX_PROCESSES = 2
WITHOUT_GPU = (
    "Metal and CUDA are optional here; the emulator runs both, and one is worth doing: "
    "`pdm run progress --gpu cuda` (or metal) makes it core"
)


Week = Annotated[int | None, typer.Option(help="Only this week.")]
DayNumber = Annotated[int | None, typer.Option("--day", help="Only this day of the week.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what passed, and run the tests again.")]
ChosenGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="metal|cuda|none",
        help="Choose, once, whose kernels are core; all others are optional.",
    ),
]


def main(
    week: Week = None,
    day: DayNumber = None,
    fresh: Fresh = False,
    gpu: ChosenGpu = None,
    package: Package = PACKAGE,
) -> None:
    """Draw the engine, with the parts that pass now lit, and list the tasks of the day that is next.

    With --week, list the tasks of that week, or of one day. Below is the speed of each day that was measured.

    A day is done when its core tasks are, and its part of the engine is half lit when some of them are. An
    optional task counts from the first function that you write of it. Unless you choose, kernels in Metal are
    core on a Mac, those in CUDA beside an NVIDIA driver, and elsewhere both are optional.

    A task's tests run once one of its functions is written, and again only after a file that they depend on
    has changed.

    Example: pdm run progress --week 1
    """
    console = Console(highlight=False)
    states: list[TaskState] = []
    with usage_errors():
        days = chosen_days(week, day)
        if gpu is not None:
            choose_gpu(gpu)
        sources = read_package(package)
        check_syntax(sources, package)
        for of_day in states_by_day(sources, days, Memory(sources, fresh)):
            show_progress("")
            if week is not None:
                print_day(of_day, console)
            states += of_day
    if week is None:
        for line in engine_lines(states):
            console.print(line, soft_wrap=True)
        if state := first_unsolved(states):
            console.print()
            print_day([each for each in states if each.day == state.day], console)
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

    A day is run as a whole unless each of its tasks is remembered or not begun. No test passes in a package
    that does not import, so none is run.
    """
    days, written = tuple(days), Written.in_package(sources)
    if error := memory.import_error if memory else import_error(sources):
        yield from ([written.state(day, task, (), {"import": error}) for task in day.tasks] for day in days)
        return
    known = {day: states for day in days if (states := known_states(day, memory, written))}
    runs = [
        Run(day_name(day), sources, [str(day.test_file)], written.pytest_options)
        for day in days
        if day not in known
    ]
    outcomes: dict[str, Outcome] = {}
    with contextlib.closing(run_all(runs, min(MAX_PROCESSES, os.cpu_count() or 1))) as ended:
        for day in days:
            while day not in known:
                show_progress(bar(day, len(outcomes), len(runs)))
                outcome = next(ended)
                outcomes[outcome.name] = outcome
                tested = next(each for each in days if day_name(each) == outcome.name)
                known[tested] = [written.state_after(outcome, tested, task) for task in tested.tasks]
                if memory:
                    keep(tested, known[tested], outcome, memory)
            yield known[day]


def known_states(day: Day, memory: Memory | None, written: Written) -> list[TaskState] | None:
    """The states of a day's tasks if each is remembered or not begun."""
    states = []
    for task in day.tasks:
        is_begun = task.id not in written.not_begun
        passed = () if not is_begun else memory.recall(day, task) if memory else None
        if passed is None:
            return None
        states.append(written.state(day, task, passed, {}))
    return states


def keep(day: Day, states: Iterable[TaskState], outcome: Outcome, memory: Memory) -> None:
    """Remember what passed in a run that was not cut short."""
    if outcome.is_whole and all(task_of(name) is not None for name in outcome.failed):
        memory.keep(day, {state.task: state.passed for state in states if state.is_solved})


def bar(day: Day, num_done: int, num_all: int) -> str:
    """The day that is shown next, and how many have been tested."""
    filled = 20 * num_done // num_all
    where = f"testing week {day.week} day {day.day}"
    return f"{where} [{'#' * filled}{'-' * (20 - filled)}] {num_done} of {num_all} days"


def first_unsolved(states: Iterable[TaskState]) -> TaskState | None:
    """The first task that is neither solved nor left out, in the order of the course."""
    return next((state for state in states if not (state.is_solved or state.is_left_out)), None)


def print_day(states: list[TaskState], console: Console) -> None:
    """One line for the day and one a task; a day is done when its core tasks are solved."""
    day = states[0].day
    is_done = all(state.is_solved for state in states if state.is_core)
    title = Text(f"week {day.week} day {day.day}  {day.title}", "bold")
    title.append("  done" if is_done else "", "bold green")
    console.print(title, soft_wrap=True)
    for state in states:
        console.print(task_line(state), soft_wrap=True)


def task_line(state: TaskState) -> Text:
    """Mark, number, title, what the tests say and how many passed."""
    sign, words, style = state.mark.value
    num_tests = len(state.passed) + len(state.failed)
    count = f" ({len(state.passed)} of {num_tests})" if num_tests else ""
    waits = f", since {state.waits_for}" if state.waits_for else ""
    title = f"{state.task.title} (optional)" if not (state.is_core or state.is_left_out) else state.task.title
    return Text.assemble(
        (f"  {sign} ", style), f"{state.task.number}. {title}: ", (f"{words}{count}{waits}", style)
    )


def print_next(states: list[TaskState], console: Console) -> None:
    """How much is solved, and the command that tests what is next."""
    core, optional = ([state for state in states if state.is_core == is_core] for is_core in (True, False))
    console.print(
        f"\n{num_solved(core)} core tasks solved" + f", {num_solved(optional)} optional ones" * bool(optional)
    )
    if any(state.task.gpu for state in optional) and remembered_gpu() is None and chosen_gpu() == "none":
        console.print(WITHOUT_GPU, soft_wrap=True)
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


def num_solved(states: Sequence[TaskState]) -> str:
    """How many are solved, of how many."""
    return f"{sum(state.is_solved for state in states)} of {len(states)}"


def load_error(state: TaskState) -> str | None:
    """Why a test file does not load, in Python's words, or None."""
    for name, message in state.failed.items():
        if task_of(name) is None:
            lines = [line.removeprefix("E").strip() for line in message.splitlines() if line.strip()]
            return lines[-1] if lines else "no reason was given"
    return None


if __name__ == "__main__":
    run_command(main, "progress")
