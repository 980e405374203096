"""Ctrl-C ends a session as it ends every command: with the line "interrupted" and exit code 130.

A pytest plugin. SIGTERM does the same, so that no process that a test started outlives the session.
"""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from scripts.errors import COMMAND, INTERRUPTED_EXIT_CODE, say_interrupted
from scripts.learn.crashes import FOLDER, session_begun
from scripts.waiting import show_progress


class Interrupts:
    """The plugin."""

    def __init__(self) -> None:
        self.is_interrupted = False
        os.environ.pop(COMMAND, None)  # a command that a test starts is nobody's part

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None]:
        """Take signals from here on, which pytest turns into a summary; before, `test` ends this process.

        A shell turns Ctrl-C off for what runs in the background; the processes of xdist begin like this one.
        """
        show_progress("reading the tests")
        yield
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if folder := os.environ.get(FOLDER):
            session_begun(Path(folder)).touch()

    def pytest_collection_finish(self) -> None:
        """Pytest prints from here on."""
        show_progress("")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that it was Ctrl-C, and not what pytest ends itself with."""
        self.is_interrupted = excinfo.type is KeyboardInterrupt

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Exit as a command does."""
        if self.is_interrupted:
            session.exitstatus = INTERRUPTED_EXIT_CODE

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say it after the summary, once for all processes."""
        if self.is_interrupted and not hasattr(config, "workerinput"):
            say_interrupted()
