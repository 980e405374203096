"""Leave out the optional tasks that a learner has not begun: a pytest plugin.

Their tests are skipped, and so is a test of another task that stops at a hole of theirs. At the end a line
for each of these tasks says so.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from scripts.course import Gpu
from scripts.learn.learner import read_package
from scripts.learn.optional import left_out
from scripts.sandbox import text_of
from scripts.sources.chunks import HOLE
from tests.support.places import Where, package_folder


class LeftOut:
    """The plugin.

    Args:
        gpu: the GPU whose kernels are core.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.tasks: set[Where] = set()
        self.skipped: Counter[Where] = Counter()

    @pytest.hookimpl(trylast=True)  # after -k has chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Skip the tests of the tasks, but not of one that --task asks for."""
        ids = left_out(read_package(package_folder()), self.gpu)
        self.tasks = {Where(*map(int, name.split("."))) for name in ids}
        if config.getoption("--task") is not None:
            self.tasks -= {where for item in items if (where := Where.of(item.nodeid))}
        for item in items:
            where = Where.of(item.nodeid)
            if where in self.tasks:
                item.add_marker(pytest.mark.skip(reason=self.skip(where)))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make a skipped test of one that stopped at a hole of the tasks."""
        report = yield
        hole = HOLE.search(text_of(call.excinfo)) if report.failed and call.excinfo else None
        if hole and (where := Where(*map(int, hole.groups()[:3]))) in self.tasks:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: {self.skip(where)}")
        return report

    def skip(self, where: Where) -> str:
        """Count a skipped test; returns the reason."""
        self.skipped[where] += 1
        return f"{where} is optional"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was skipped, and how to run it."""
        for line in lines_of(self.skipped.items()):
            terminalreporter.write_line(line)


def lines_of(skipped: Iterable[tuple[Where, int]]) -> list[str]:
    """One line for each task and its number of skipped tests."""
    return [
        f"skipped {number} test{'s' * (number > 1)} that need an optional task: {where.heading} "
        f"(pdm run test --week {where.week} --day {where.day} --task {where.task})"
        for where, number in sorted(skipped)
    ]
