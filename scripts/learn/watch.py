"""Rerun the first unsolved task's tests on every save."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from watchfiles import PythonFilter, watch

from scripts.command import run_command
from scripts.course import ROOT, Day, Task
from scripts.errors import usage_errors
from scripts.learn.learner import PACKAGE, check_syntax, read_package
from scripts.learn.progress import DayNumber, Week, chosen_days
from scripts.learn.search import DAY_SOLVED, FOUND, Skip, TaskNumber, asked_id, skipped_ids, task_by_id
from scripts.learn.terminal import key_presses, read_key
from scripts.sources.files import SUFFIXES
from scripts.waiting import show_progress

KEY_POLL_MS = 150
ALL = "every task"
KEYS = "h hint · n next task · q quit"


def main(week: Week = None, day: DayNumber = None, task: TaskNumber = None, skip: Skip = None) -> None:
    """Test the first unsolved task of tiny_llm each time you save a file.

    An optional task is passed over unless you have begun it or ask for it with --task.

    Days that passed are remembered until a file that they depend on changes.
    Keys: h shows a hint, n goes on to the next unsolved task, q quits.

    Example: pdm run watch --week 2 --day 5 --skip w2d5t3
    """
    with usage_errors():
        options = search_options(week, day, skip or (), task)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ValueError("watch needs a terminal for its keys: use `pdm run progress` without one")
        with key_presses():
            search = partial(search_command_line, options=options)
            Watcher(PACKAGE, command_line, search, "every task asked for" if options else ALL).loop(read_key)


class Search:
    """The process that looks for the first unsolved task, and what it prints."""

    def __init__(self, command: list[str]) -> None:
        self._output, its_end = os.pipe()
        os.set_blocking(self._output, False)
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=nothing, stdout=its_end, stderr=nothing, start_new_session=True
        )
        os.close(its_end)
        self._rest = b""

    def new_lines(self) -> list[dict[str, str | None]]:
        """What it has printed since the last call, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._output, 65536):
                self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Kill it and every process that it started."""
        end_session(self.process)
        os.close(self._output)


class Watcher:
    """The current task, and the process that tests it or looks for another one.

    Args:
        package: the folder to watch.
        command: command line of `test` or `hint` for a task.
        search: command line that prints the first unsolved task of a package after the one with an id.
        asked_for: the tasks it looks through, in words.
    """

    def __init__(
        self,
        package: Path,
        command: Callable[[str, Day, Task], list[str]],
        search: Callable[[Path, str | None], list[str]],
        asked_for: str = ALL,
    ) -> None:
        self.package = package
        self.command = command
        self.search_command = search
        self.asked_for = asked_for
        self.console = Console(highlight=False)
        self.current: tuple[Day, Task] | None = None
        self.search: Search | None = None
        self.tests: subprocess.Popen[bytes] | None = None

    def loop(self, key: Callable[[], str]) -> None:
        """Test on every save and obey keys, until q."""
        try:
            self.start_search()
            changes = watch(
                self.package,
                watch_filter=PythonFilter(extra_extensions=SUFFIXES),
                rust_timeout=KEY_POLL_MS,
                yield_on_timeout=True,
                raise_interrupt=True,
            )
            for saved in changes:
                pressed = key()
                if pressed == "q":
                    return
                if pressed:
                    self.obey(pressed)
                if saved and (self.current is None or self.search is not None):
                    self.start_search()
                elif saved:
                    self.start_tests()
                self.report_search()
                self.report_end()
        finally:
            self.stop()

    def obey(self, key: str) -> None:
        """Act on a key other than q."""
        if key == "n" and self.search is None:
            self.start_search()
        elif key == "h" and self.current is not None:
            show_progress("")
            subprocess.run(self.command("hint", *self.current), cwd=ROOT)

    def start_search(self) -> None:
        """Look for the first unsolved task after the current one, or the first of all."""
        self.stop()
        if not self.is_readable():
            return
        show_progress("looking for the first unsolved task · q quits")
        self.search = Search(self.search_command(self.package, self.current[1].id if self.current else None))

    def report_search(self) -> None:
        """Show how far the search is; test the task once it is found."""
        if self.search is None:
            return
        exit_code = self.search.process.poll()  # before the output is read, so that none is missed
        for line in self.search.new_lines():
            if FOUND in line:
                self.end_search(line[FOUND])
                return
            show_progress(f"looking for the first unsolved task: {line[DAY_SOLVED]} is solved · q quits")
        if exit_code is not None:
            show_progress("")
            self.console.print("the tests could not be run: `pdm run progress` says more", style="red")
            self.stop()

    def end_search(self, task_id: str | None) -> None:
        """Switch to the task that was found."""
        show_progress("")
        self.stop()
        self.current = task_by_id(task_id) if task_id else None
        if self.current is None:
            self.console.print(f"{self.asked_for} is solved", style="green")
        else:
            self.start_tests()

    def is_readable(self) -> bool:
        """Whether Python can parse the package; print its error if not."""
        try:
            check_syntax(read_package(self.package), self.package)
        except ValueError as error:
            self.console.print(str(error), style="red", soft_wrap=True)
            return False
        return True

    def start_tests(self) -> None:
        """Test the current task; tests that are still running start over."""
        self.stop()
        if self.current is None or not self.is_readable():
            return
        day, task = self.current
        self.console.rule(f"week {day.week} day {day.day} task {task.number}: {task.title}", align="left")
        # In its own session, so that Ctrl-C reaches only `watch`.
        self.tests = subprocess.Popen(self.command("test", day, task), cwd=ROOT, start_new_session=True)

    def report_end(self) -> None:
        """Show the keys once the tests have ended."""
        if self.tests is None or self.tests.poll() is None:
            return
        if self.tests.returncode == 0:
            self.console.print("passed: n goes on to the next task", style="green")
        self.console.print(f"waiting for a save · {KEYS}", style="dim")
        self.tests = None

    def stop(self) -> None:
        """Kill the tests and the search, if any."""
        if self.tests is not None:
            end_session(self.tests)
        if self.search is not None:
            self.search.stop()
        self.tests = self.search = None


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a session leader and every process that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def search_options(
    week: int | None, day: int | None, skip: Sequence[str], task: int | None = None
) -> list[str]:
    """Options that tell the search where to look; ValueError for a day or task that does not exist."""
    asked_id(chosen_days(week, day), task)
    skipped_ids(skip)
    where = {"--week": week, "--day": day, "--task": task}
    given = [part for name, number in where.items() if number is not None for part in (name, str(number))]
    return [*given, *(part for name in skip for part in ("--skip", name))]


def search_command_line(package: Path, after: str | None, options: Sequence[str] = ()) -> list[str]:
    """The command line of the search."""
    start = ["--package", str(package), *(["--after", after] if after else [])]
    return [sys.executable, "-m", "scripts.learn.search", *start, *options]


def command_line(name: str, day: Day, task: Task) -> list[str]:
    """A command of the course for one task."""
    where = ["--week", str(day.week), "--day", str(day.day), "--task", str(task.number)]
    return [sys.executable, "-m", f"scripts.learn.{name}", *where]


if __name__ == "__main__":
    run_command(main, "watch")
