"""The learner's functions beside the reference's, a row for each case, as `pdm run compare` prints them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from scripts.compare.batch import BatchComparison, compare_batch
from scripts.compare.cases import cases_of
from scripts.compare.costs import compare_case
from scripts.compare.learner import Learner
from scripts.compare.library import THE_REFERENCE, Library
from scripts.compare.report import Report
from scripts.course import Day, Task
from scripts.waiting import show_progress

PARTS_OF_A_RUN = (
    "model.dense_kv_cache.BatchingKvCache",
    "model.dense_kv_cache.BatchingKvCache.update_and_fetch",
    "batching.request.Request.try_prefill",
    "batching.request.Request.decode_done",
    "batching.batch_generator.BatchGenerator.prefill_phase",
    "batching.batch_generator.BatchGenerator.decode_phase",
    "batching.batch_generator.BatchGenerator.promote_phase",
)


def is_compared(symbol: str) -> bool:
    """Whether a symbol of course.toml has a case or a part in a whole run."""
    return bool(cases_of(symbol)) or symbol in PARTS_OF_A_RUN


@dataclass
class Comparison:
    """A day under way: what is compared, and how many rows came out how."""

    day: Day
    learner: Learner
    mine: Library
    repeats: int
    report: Report = field(default_factory=lambda: Report(Console(highlight=False)))
    reference: Library = THE_REFERENCE
    num_equal: int = 0
    num_different: int = 0
    num_unwritten: int = 0
    task_to_test: Task | None = None

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
                self.report.line(f"\n{task.number}. {task.title}", style="bold")
            for symbol in symbols:
                self.report.line(f" {symbol.split('.', 1)[1]}", style="cyan")
                self.compare_symbol(task, symbol)
        if parts := [task for task in tasks if set(PARTS_OF_A_RUN) & set(task.symbols)]:
            self.compare_batch(parts[0])
        total = self.num_equal + self.num_different
        sums = [f"{self.num_equal} of {total} equal"] if total else []
        sums += [f"{self.num_unwritten} not written yet"] if self.num_unwritten else []
        self.report.summary(", ".join(sums), self.day, self.task_to_test)

    def compare_symbol(self, task: Task, symbol: str) -> None:
        """The cases of a symbol, or that it is not written."""
        if names := self.learner.unwritten(symbol):
            self.report.not_written([name for name in names if not symbol.endswith(f".{name}")])
            self.num_unwritten += 1
            self.task_to_test = self.task_to_test or task
            return
        for case in cases_of(symbol):
            show_progress(f"running {symbol}: Ctrl-C ends the comparison")
            verdict = compare_case(case, self.learner, self.mine, self.reference, self.repeats)
            show_progress("")
            self.report.row(verdict)
            self.count(verdict.difference is None, task)

    def compare_batch(self, task: Task) -> None:
        """A run of both generators, if something in it is the learner's; the first task with a part in it."""
        self.report.start_batch()
        unwritten = [symbol for symbol in PARTS_OF_A_RUN if self.learner.unwritten(symbol)]
        if len(unwritten) == len(PARTS_OF_A_RUN):
            self.report.not_written([])
            return
        show_progress("running both generators: Ctrl-C ends the comparison")
        found = compare_batch(self.learner, self.mine, self.reference, self.repeats)
        show_progress("")
        self.report.batch(found, unwritten)
        self.count(isinstance(found, BatchComparison) and found.is_equal, task)

    def count(self, is_equal: bool, task: Task) -> None:
        """One more row, of this task."""
        self.num_equal += is_equal
        self.num_different += not is_equal
        self.task_to_test = self.task_to_test or (None if is_equal else task)
