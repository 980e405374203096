"""Search for the first unsolved task, for `watch`: in a process of its own, so that its keys work meanwhile.

Prints a line of JSON for each day that is solved, then one that names the task found, or none.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.course import Day, Task, load_course
from scripts.errors import usage_errors
from scripts.learn.learner import PACKAGE, Package, all_tasks, read_package
from scripts.learn.progress import MAX_PROCESSES, task_of
from scripts.sandbox import Outcome, Run, run_all
from scripts.sources.files import Sources

After = Annotated[str | None, typer.Option(help="The id of a task: look at what follows it first.")]
DAY_SOLVED, FOUND = "day_solved", "found"


@dataclass(frozen=True)
class Step:
    """Tests to run up to the first failure: those of some tasks of one day that follow each other."""

    day: Day
    tasks: Sequence[Task]

    @property
    def name(self) -> str:
        """Unique among the steps of a search."""
        return self.tasks[0].id

    def run(self, sources: Sources) -> Run:
        """The whole file of the day, or one task of it."""
        is_whole = len(self.tasks) == len(self.day.tasks)
        chosen = [] if is_whole else ["--task", str(self.tasks[0].number)]
        return Run(self.name, sources, [str(self.day.test_file)], ["--tb=line", "-x", *chosen])

    def first_failed(self, outcome: Outcome) -> Task | None:
        """The first task with a test that failed; the first of all where none could be run."""
        numbers = {task_of(name) for name in outcome.failed}
        if None in numbers:
            return self.tasks[0]
        return next((task for task in self.tasks if task.number in numbers), None)


def steps_after(days: Sequence[Day], after: str | None) -> list[Step]:
    """Day by day what follows a task, then from the beginning up to that task."""
    ids = [task.id for day in days for task in day.tasks]
    start = ids.index(after) + 1 if after in ids else 0
    following = [step for day in days for step in steps_of_day(day, set(ids[start:]))]
    return following + [step for day in days for step in steps_of_day(day, set(ids[:start]))]


def steps_of_day(day: Day, chosen: set[str]) -> list[Step]:
    """The day at once if all of it is chosen, else its chosen tasks one by one."""
    tasks = [task for task in day.tasks if task.id in chosen]
    return [Step(day, tasks)] if len(tasks) == len(day.tasks) else [Step(day, [task]) for task in tasks]


def search(sources: Sources, after: str | None = None) -> Iterator[Mapping[str, str | None]]:
    """What the command prints."""
    steps = steps_after(load_course().days, after)
    outcomes: dict[str, Outcome] = {}
    num_workers = min(MAX_PROCESSES, os.cpu_count() or 1)
    with contextlib.closing(run_all((step.run(sources) for step in tuple(steps)), num_workers)) as ended:
        for outcome in ended:
            outcomes[outcome.name] = outcome
            while steps and steps[0].name in outcomes:
                step = steps.pop(0)
                if task := step.first_failed(outcomes[step.name]):
                    yield {FOUND: task.id}
                    return
                yield {DAY_SOLVED: f"week {step.day.week} day {step.day.day}"}
    yield {FOUND: None}


def task_by_id(name: str) -> tuple[Day, Task]:
    """A task of the map with its day."""
    return next((day, task) for day, task in all_tasks(load_course()) if task.id == name)


def main(after: After = None, package: Package = PACKAGE) -> None:
    """Print what is solved and the first task that is not, as lines of JSON."""
    with usage_errors():
        for line in search(read_package(Path(package)), after):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    typer.run(main)
