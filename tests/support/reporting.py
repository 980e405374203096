"""What a learner reads when a test of a day fails: what went wrong and where, without any traceback.

A pytest plugin. It writes the reports of the day tests anew and shows those of the first unsolved task
alone, unless --all is given. Other tests keep pytest's own reports, and so do all with an explicit --tb.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import Any

import pytest

from tests.support.failures import Failure, narrowed, tell
from tests.support.places import Place, Where, relative

MAX_FAILURES = 3


class FailureReporter:
    """The plugin."""

    def __init__(self, shows_all: bool) -> None:
        self.shows_all = shows_all
        self.failures: list[Failure] = []
        self.reports: set[str] = set()
        self.has_other_tests = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note whether there is anything but day tests."""
        self.has_other_tests = any(Where.of(item.nodeid) is None for item in session.items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Ask pytest, and hypothesis with it, for no quotation of a failure: to make one takes long."""
        if Where.of(item.nodeid):
            item.repr_failure = lambda excinfo: ""  # type: ignore[assignment, method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell a failure of a day test anew."""
        where = Where.of(item.nodeid)
        report = yield
        if report.failed and where and call.excinfo:
            failure = tell(
                call.excinfo.value, where, item.name, item.path, getattr(item, "obj", None), report.capstdout
            )
            self._take(report, failure)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Tell anew why the tests of a day cannot be read: nearly always an error of the learner's module."""
        report = yield
        where = Where.of(collector.nodeid)
        call = getattr(report, "call", None)
        if report.failed and where and call:
            error = call.excinfo.value
            self._take(report, tell(error.__cause__ or error, where, collector.name, collector.path))
        return report

    def _take(self, report: pytest.TestReport | pytest.CollectReport, failure: Failure) -> None:
        report.longrepr = str(failure)
        self.failures.append(failure)
        self.reports.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Write the failures of the day tests, then let pytest write the others."""
        stats = terminalreporter.stats
        if not self.has_other_tests:
            stats.pop("warnings", None)
        if self.failures:
            self._write(terminalreporter)
        hidden = {key: stats[key] for key in ("failed", "error") if key in stats}
        for key, reports in hidden.items():
            stats[key] = [report for report in reports if report.nodeid not in self.reports]
        try:
            return (yield)
        finally:
            stats.update(hidden)

    def _write(self, terminal: Any) -> None:
        in_order = sorted(self.failures, key=lambda failure: failure.where)
        tasks = [[*of_task] for _, of_task in groupby(in_order, key=lambda failure: failure.where)]
        failures = [failure for of_task in tasks for failure in narrowed(of_task)]
        terminal.section("FAILURES", "=")
        if not self.shows_all and is_untouched(failures):
            title, *rest = untouched_lines(failures)
            terminal.write_line(title, bold=True)
            for line in rest:
                terminal.write_line(line)
            return
        shown = failures if self.shows_all else first_failures(failures)
        for failure in shown:
            title, *rest = failure.lines()
            terminal.write_line(title, bold=True)
            terminal.write_line(rest[0], red=True)
            for line in rest[1:]:
                terminal.write_line(line)
            terminal.write_line("")
        for sentence in what_is_left(failures, shown):
            terminal.write_line(sentence)


def is_untouched(failures: Sequence[Failure]) -> bool:
    """Whether the first task that fails does so at holes alone."""
    return all(failure.is_hole for failure in failures if failure.where == failures[0].where)


def untouched_lines(failures: Sequence[Failure]) -> list[str]:
    """The first task that fails, what of it is not written yet, one a line, and what comes after it."""
    of_first = [failure for failure in failures if failure.where == failures[0].where]
    places: dict[str, Place] = {}
    for failure in of_first:
        places.setdefault(failure.message.removeprefix(f"{failure.where}: "), failure.places[-1])
    lines = [f"{name}: {relative(place.file)}:{place.line}" for name, place in places.items()]
    return [failures[0].where.heading, *lines, *what_is_left(failures, of_first)]


def first_failures(failures: Sequence[Failure]) -> list[Failure]:
    """Of the first task that fails, three failures that say different things: one a test function first."""
    chosen: dict[object, Failure] = {}
    for failure in failures:
        if failure.where == failures[0].where:
            chosen.setdefault(failure.key, failure)
    turns: Counter[str] = Counter()
    turn_of = {}
    for key, failure in chosen.items():
        turn_of[key] = turns[failure.function]
        turns[failure.function] += 1
    return [chosen[key] for key in sorted(chosen, key=turn_of.__getitem__)[:MAX_FAILURES]]


def what_is_left(failures: Sequence[Failure], shown: Sequence[Failure]) -> list[str]:
    """Sentences on the failures that are not shown."""
    first = failures[0].where
    of_first = sum(failure.where == first for failure in failures)
    later_tasks = {failure.where for failure in failures} - {failure.where for failure in shown}
    sentences = []
    if len(shown) < of_first:
        sentences.append(f"and {count(of_first - len(shown), 'more test')} of this task (--all shows them)")
    if later_tasks:
        fails = "fails" if len(later_tasks) == 1 else "fail"
        sentences.append(f"{count(len(later_tasks), 'later task')} {fails} too: --all shows every failure")
    return sentences


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
