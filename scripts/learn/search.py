"""Find the first unsolved task for `watch`, in a separate process, so that its keys work meanwhile.

Prints a line of JSON for each solved day, then one with the task it found, or null.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.course import Day, Task, load_course
from scripts.errors import usage_errors
from scripts.learn.learner import PACKAGE, Package, all_tasks, read_package
from scripts.learn.progress import MAX_PROCESSES, DayNumber, Week, chosen_days
from scripts.learn.remembered import Memory
from scripts.learn.task_state import Written, task_of
from scripts.sandbox import Outcome, Run, run_all
from scripts.sources.files import Sources

After = Annotated[str | None, typer.Option(help="The id of a task: start behind it, and end with it.")]
TaskNumber = Annotated[
    int | None, typer.Option("--task", help="Only this task of the day, though it be optional.")
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="TASK", help="Leave this task out, as in w2d5t3; may be repeated."),
]
TASK_NAME = re.compile(r"w(\d+)d(\d+)t(\d+)")
DAY_SOLVED, FOUND = "day_solved", "found"


@dataclass(frozen=True)
class Step:
    """Tasks of one day whose tests run together: one task, or all but those left out."""

    day: Day
    tasks: Sequence[Task]
    pytest_options: Sequence[str]

    @property
    def name(self) -> str:
        """Unique among the steps of a search."""
        return self.tasks[0].id

    def run(self, sources: Sources) -> Run:
        """The tests of its tasks, up to the first failure."""
        return Run(self.name, sources, [str(self.day.test_file)], ["-x", *self.pytest_options])

    def passed(self, outcome: Outcome) -> Mapping[Task, Sequence[str]]:
        """The tests of each task when none failed."""
        return {
            task: [name for name in outcome.passed if task_of(name) == task.number] for task in self.tasks
        }

    def first_failed(self, outcome: Outcome) -> Task | None:
        """The first task with a failed test; the first of all if no test could run."""
        numbers = {task_of(name) for name in outcome.failed}
        if None in numbers:
            return self.tasks[0]
        return next((task for task in self.tasks if task.number in numbers), None)


def steps_after(
    days: Sequence[Day], after: str | None, written: Written, known: Collection[str] = ()
) -> list[Step]:
    """The steps behind a task, then those from the beginning up to it, without tasks known or left out."""
    following, before = (set(ids) - {*known, *written.left_out} for ids in ids_after(days, after))
    return [
        step for chosen in (following, before) for day in days for step in steps_of_day(day, chosen, written)
    ]


def ids_after(days: Sequence[Day], after: str | None) -> tuple[list[str], list[str]]:
    """The ids behind a task, in order, and those up to it."""
    ids = [task.id for day in days for task in day.tasks]
    start = ids.index(after) + 1 if after in ids else 0
    return ids[start:], ids[:start]


def steps_of_day(day: Day, chosen: set[str], written: Written) -> list[Step]:
    """One step for a day of which all tasks are chosen but those left out, else one per task."""
    tasks = [task for task in day.tasks if task.id in chosen]
    options = written.pytest_options
    if tasks and tasks == [task for task in day.tasks if task.id not in written.left_out]:
        return [Step(day, tasks, options)]
    return [Step(day, [task], [*options, "--task", str(task.number)]) for task in tasks]


def search(
    sources: Sources,
    after: str | None = None,
    days: Sequence[Day] = (),
    skipped: Collection[str] = (),
    asked: str | None = None,
) -> Iterator[Mapping[str, str | None]]:
    """The lines that the command prints, for some days or all, without the tasks to skip.

    An optional task is left out until a function of it is written, unless it is `asked` for. A task with a
    function that is not written yet counts as unsolved without running its tests.
    """
    days = days or load_course().days
    memory = Memory(sources)
    written = Written.in_package(sources).with_asked(asked)
    gone = {*skipped, *written.left_out}
    known = {task.id: memory.recall(day, task) for day in days for task in day.tasks if task.id not in gone}
    order = [name for part in ids_after(days, after) for name in part if name in known]
    unsolved = next((name for name in order if known[name] is None and name in written.unwritten), None)
    beyond = order[order.index(unsolved) :] if unsolved else []
    passed = (name for name, tests in known.items() if tests is not None)
    steps = steps_after(days, after, written, {*skipped, *beyond, *passed})
    outcomes: dict[str, Outcome] = {}
    num_workers = min(MAX_PROCESSES, os.cpu_count() or 1)
    with contextlib.closing(run_all((step.run(sources) for step in tuple(steps)), num_workers)) as ended:
        for outcome in ended if steps else ():
            outcomes[outcome.name] = outcome
            while steps and steps[0].name in outcomes:
                step = steps.pop(0)
                outcome = outcomes[step.name]
                if task := step.first_failed(outcome):
                    yield {FOUND: task.id}
                    return
                if outcome.exit_code == 0:
                    memory.keep(step.day, step.passed(outcome))
                yield {DAY_SOLVED: f"week {step.day.week} day {step.day.day}"}
    yield {FOUND: unsolved}


def task_by_id(name: str) -> tuple[Day, Task]:
    """A task by its id, with its day."""
    return next((day, task) for day, task in all_tasks(load_course()) if task.id == name)


def skipped_ids(names: Sequence[str]) -> set[str]:
    """Ids of the tasks that options name, such as w2d5t3; ValueError for one that does not exist."""
    ids = set()
    for name in names:
        if not (match := TASK_NAME.fullmatch(name)):
            raise ValueError(f"--skip {name!r} names no task: write it as w2d5t3")
        week, day, task = map(int, match.groups())
        ids.add(load_course().day(week, day).task(task).id)
    return ids


def asked_id(days: Sequence[Day], task: int | None) -> str | None:
    """Id of the task asked for on the one day chosen; ValueError without a day, or if it has no such task."""
    if task is None:
        return None
    if len(days) != 1:
        raise ValueError(
            f"--task needs --week and --day: give them too, as in --week 1 --day 3 --task {task}"
        )
    return days[0].task(task).id


def main(
    after: After = None,
    week: Week = None,
    day: DayNumber = None,
    task: TaskNumber = None,
    skip: Skip = None,
    package: Package = PACKAGE,
) -> None:
    """Print the solved days and the first unsolved task as lines of JSON."""
    with usage_errors():
        days, skipped = chosen_days(week, day), skipped_ids(skip or ())
        if asked := asked_id(days, task):
            skipped |= {each.id for each in days[0].tasks} - {asked}
        for line in search(read_package(Path(package)), after, days, skipped, asked):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    typer.run(main)
