"""Rerun the first unsolved task's tests on every save."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from watchfiles import PythonFilter, watch

from scripts.course import ROOT, Day, Task, load_course
from scripts.errors import usage_errors
from scripts.learner import PACKAGE, check_syntax, read_package
from scripts.patching import Sources
from scripts.progress import TaskState, first_unsolved, task_states
from scripts.setup import show_progress

KEY_POLL_MS = 150
KEYS = "h hint · n next task · q quit"


def main() -> None:
    """Test the first unsolved task of tiny_llm each time you save a file.

    Keys: h shows a hint, n goes on to the next unsolved task, q quits.

    Example: pdm run watch
    """
    with usage_errors():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ValueError("watch needs a terminal for its keys: use `pdm run progress` without one")
        with ended_by_signal(), key_presses():
            Watcher(PACKAGE).loop(read_key)


@contextlib.contextmanager
def key_presses() -> Iterator[None]:
    """Keys are read one by one and not shown; the terminal gets its settings back whatever happens."""
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """Let a request to end, or a closed window, pass through every `finally`."""

    received: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        if received:
            sys.exit(128 + received[0])
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def read_key() -> str:
    """The key that was pressed, if one was; at the end of the input, q."""
    terminal = sys.stdin.fileno()
    if not select.select([terminal], [], [], 0)[0]:
        return ""
    # Not sys.stdin.read: what it buffers, `select` does not see.
    return os.read(terminal, 1).decode("ascii", "replace") or "q"


class Watcher:
    """Knows the task at hand, and the process that tests it.

    Args:
        package: the folder to watch.
        command: what runs the tests of a task, and the hint: `pdm run test`'s and `pdm run hint`'s modules.
    """

    def __init__(self, package: Path, command: Callable[[str, Day, Task], list[str]] | None = None) -> None:
        self.package = package
        self.command = command or command_line
        self.console = Console(highlight=False)
        self.current: TaskState | None = None
        self.tests: subprocess.Popen[bytes] | None = None

    def loop(self, key: Callable[[], str]) -> None:
        """Test on every save and obey keys, until q."""
        try:
            self.choose_task()
            changes = watch(
                self.package,
                watch_filter=PythonFilter(),
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
                if saved:
                    self.restart_tests()
                self.report_end()
        finally:
            self.stop_tests()

    def obey(self, key: str) -> None:
        """A key other than q."""
        if key == "n":
            self.choose_task()
        elif key == "h" and self.current is not None:
            subprocess.run(self.command("hint", self.current.day, self.current.task), cwd=ROOT)

    def choose_task(self) -> None:
        """The first unsolved task after the current one, or the first of all."""
        self.stop_tests()
        sources = self.readable_sources()
        if sources is None:
            return
        show_progress("looking for the first unsolved task")
        self.current = next_unsolved(sources, self.current)
        show_progress("")
        if self.current is None:
            self.console.print("every task is solved", style="green")
            return
        self.restart_tests()

    def readable_sources(self) -> Sources | None:
        """The package's sources, or None and a line that says what Python cannot read."""
        try:
            sources = read_package(self.package)
            check_syntax(sources, self.package)
        except ValueError as error:
            self.console.print(str(error), style="red", soft_wrap=True)
            return None
        return sources

    def restart_tests(self) -> None:
        """Test the task at hand, from the start if that was under way."""
        self.stop_tests()
        if self.current is None:
            self.choose_task()
            return
        if self.readable_sources() is None:
            return
        day, task = self.current.day, self.current.task
        self.console.rule(f"week {day.week} day {day.day} task {task.number}: {task.title}", align="left")
        # A session of its own, so that Ctrl-C is ours alone to act on.
        self.tests = subprocess.Popen(self.command("test", day, task), cwd=ROOT, start_new_session=True)

    def report_end(self) -> None:
        """Say what the keys are once the tests have ended."""
        if self.tests is None or self.tests.poll() is None:
            return
        if self.tests.returncode == 0:
            self.console.print("passed: n goes on to the next task", style="green")
        self.console.print(f"waiting for a save · {KEYS}", style="dim")
        self.tests = None

    def stop_tests(self) -> None:
        """End the tests that run, with every process that they started."""
        if self.tests is not None and self.tests.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.tests.pid, signal.SIGKILL)
            self.tests.wait()
        self.tests = None


def next_unsolved(sources: Sources, current: TaskState | None) -> TaskState | None:
    """The first unsolved task after the current one, else of all.

    Days are tested two at a time and only as far as needed.
    """
    days = load_course().days
    for first in range(days.index(current.day) if current else 0, len(days), 2):
        states = task_states(sources, days[first : first + 2])
        if current:
            states = [state for state in states if position(state) > position(current)]
        if found := first_unsolved(states):
            return found
    return next_unsolved(sources, None) if current else None


def position(state: TaskState) -> tuple[int, int, int]:
    """Where a task stands in the course."""
    return state.day.week, state.day.day, state.task.number


def command_line(name: str, day: Day, task: Task) -> list[str]:
    """A command of the course for one task."""
    where = ["--week", str(day.week), "--day", str(day.day), "--task", str(task.number)]
    return [sys.executable, "-m", f"scripts.{name}", *where]


if __name__ == "__main__":
    typer.run(main)
