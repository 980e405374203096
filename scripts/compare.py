"""Compare the learner's functions with the reference: results, time and memory, on the same inputs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

import tiny_llm_ref  # before anything that loads MLX, which takes its BLAS from what is there
from scripts.compare_batch import BatchComparison, compare_batch
from scripts.compare_cases import CASES, cases_of, symbol_of
from scripts.compare_library import Library
from scripts.compare_package import Learner, filled_package
from scripts.compare_report import Report
from scripts.compare_runs import compare_case
from scripts.course import Day, Task, load_course
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from scripts.learn.learner import PACKAGE, Package
from scripts.setup import show_progress

DIFFERENT_EXIT_CODE = 1
PARTS_OF_A_RUN = [
    symbol_of(name)
    for name in (
        "BatchingKvCache",
        "BatchingKvCache.update_and_fetch",
        "try_prefill",
        "Request.decode_done",
        "prefill_phase",
        "decode_phase",
        "promote_phase",
    )
]

Week = Annotated[int, typer.Option(help="The week.")]
DayNumber = Annotated[int, typer.Option("--day", help="The day of the week.")]
TaskNumber = Annotated[int | None, typer.Option("--task", help="Only this task of the day.")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs of each case; fewer where one takes long.")]


def main(
    week: Week, day: DayNumber, task: TaskNumber = None, repeats: Repeats = 7, package: Package = PACKAGE
) -> None:
    """Run your functions and the reference's on the day's inputs: equal or not and where, time and memory.

    What you have not written yet is the reference's meanwhile, so the rest can be compared all the same. A
    time is the median of runs in turns; memory is the most that a run held at once. On the batching days a
    whole run follows, with both timelines. What takes neither time nor memory is left to the tests. The exit
    code is 0 when all is equal, else 1.

    Example: pdm run compare --week 1 --day 1
    """
    use_full_float32()
    with usage_errors():
        course = load_course()
        chosen = course.day(week, day)
        tasks = chosen.tasks if task is None else (chosen.task(task),)
        check_comparable(chosen, tasks)
        try:
            with filled_package(package, course) as (learner, mine):
                comparison = Comparison(chosen, learner, mine, repeats)
                comparison.compare(tasks)
        finally:
            show_progress("")
    sys.exit(0 if comparison.is_equal else DIFFERENT_EXIT_CODE)


def check_comparable(day: Day, tasks: Sequence[Task]) -> None:
    """Refuse tasks with nothing to compare."""
    symbols = {symbol for task in tasks for symbol in task.symbols}
    if not symbols & {*PARTS_OF_A_RUN, *(symbol_of(case.symbol) for case in CASES)}:
        where = f"--week {day.week} --day {day.day} --task {tasks[0].number}"
        raise ValueError(f"this task has no time or memory to compare; its tests are: pdm run test {where}")


@dataclass
class Comparison:
    """A day under way: what is compared, and how many rows came out how."""

    day: Day
    learner: Learner
    mine: Library
    repeats: int
    report: Report = field(default_factory=lambda: Report(Console(highlight=False)))
    reference: Library = field(default_factory=lambda: Library(tiny_llm_ref))
    num_equal: int = 0
    num_different: int = 0
    num_unwritten: int = 0
    tasks_to_test: list[Task] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Nothing differs and nothing is missing."""
        return not self.num_different and not self.num_unwritten

    def compare(self, tasks: Sequence[Task]) -> None:
        """Every symbol that has cases, then a whole run where the day has one."""
        self.report.start_day(self.day)
        for task in tasks:
            symbols = [symbol for symbol in task.symbols if cases_of(symbol)]
            if symbols:
                self.report.start_task(task)
            for symbol in symbols:
                self.compare_symbol(task, symbol)
        self.compare_batch([task for task in tasks if set(PARTS_OF_A_RUN) & set(task.symbols)])
        self.sum_up()

    def compare_symbol(self, task: Task, symbol: str) -> None:
        """The cases of a symbol, or that it is not written."""
        self.report.start_symbol(symbol)
        if names := self.learner.unwritten(symbol):
            self.report.not_written([name for name in names if not symbol.endswith(f".{name}")])
            self.num_unwritten += 1
            self.tasks_to_test.append(task)
            return
        for case in cases_of(symbol):
            show_progress(f"running {symbol}: Ctrl-C ends the comparison")
            verdict = compare_case(case, self.learner, self.mine, self.reference, self.repeats)
            show_progress("")
            self.report.row(verdict)
            self.count(verdict.difference is None, [task])

    def compare_batch(self, tasks: list[Task]) -> None:
        """A run of both generators, if these tasks have a part in it and something in it is the learner's."""
        if not tasks:
            return
        self.report.start_batch()
        unwritten = [symbol for symbol in PARTS_OF_A_RUN if self.learner.unwritten(symbol)]
        if len(unwritten) == len(PARTS_OF_A_RUN):
            self.report.not_written([])
            return
        show_progress("running both generators: Ctrl-C ends the comparison")
        found = compare_batch(self.learner, self.mine, self.reference, self.repeats)
        show_progress("")
        self.report.batch(found, unwritten)
        self.count(isinstance(found, BatchComparison) and found.is_equal, tasks)

    def count(self, is_equal: bool, tasks: list[Task]) -> None:
        """One more row, of these tasks."""
        self.num_equal += is_equal
        self.num_different += not is_equal
        self.tasks_to_test += [] if is_equal else tasks

    def sum_up(self) -> None:
        """One line, and the command that says more of the first difference."""
        total = self.num_equal + self.num_different
        parts = [f"{self.num_equal} of {total} equal"] if total else []
        if self.num_unwritten:
            parts.append(f"{self.num_unwritten} not written yet")
        self.report.summary(", ".join(parts), self.day, self.tasks_to_test[:1])


if __name__ == "__main__":
    typer.run(main)
