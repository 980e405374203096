"""A pytest plugin: Ctrl-C ends a session as it ends every command, with "interrupted" and exit code 130."""

import os
import signal
from pathlib import Path

import pytest

from scripts.errors import COMMAND, INTERRUPTED_EXIT_CODE, leave, say_interrupted
from scripts.learn.crashes import FOLDER, tests_begun
from scripts.waiting import show_progress


class Interrupts:
    """The plugin."""

    def __init__(self) -> None:
        self.has_begun = self.is_interrupted = False
        os.environ.pop(COMMAND, None)  # a command that a test starts is on its own

    def pytest_sessionstart(self) -> None:
        """Show what takes seconds from here on. A command that runs pytest itself lets it take Ctrl-C."""
        show_progress("reading the tests")
        if signal.getsignal(signal.SIGINT) is leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def pytest_runtest_logstart(self) -> None:
        """Before the first test, take Ctrl-C, which pytest turns into a summary; until then `test` ends all.

        It may have been turned off until now, by `test` or by a shell that runs this in the background.
        """
        if self.has_begun:
            return
        self.has_begun = True
        show_progress("")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if folder := os.environ.get(FOLDER):
            tests_begun(Path(folder)).touch()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that it was Ctrl-C, and not what pytest ends itself with."""
        show_progress("")
        self.is_interrupted = excinfo.type is KeyboardInterrupt

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Exit as a command does; all but tests is written from here on."""
        show_progress("")
        if self.is_interrupted:
            session.exitstatus = INTERRUPTED_EXIT_CODE

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say it after the summary, once for all processes."""
        if self.is_interrupted and not hasattr(config, "workerinput"):
            say_interrupted()
