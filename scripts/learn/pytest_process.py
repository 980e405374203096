"""Pytest in a process of its own, which Ctrl-C ends at any moment, with all that it has started.

python -m scripts.learn.pytest_process ARGUMENTS
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from scripts.errors import INTERRUPTED_EXIT_CODE, SIGNALLED, handled, say_interrupted, signals_held
from scripts.learn.crashes import FOLDER, tests_begun
from scripts.waiting import hand_over

POLL_SECONDS = 0.05
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
"""With it, pytest loads only the plugins it is told to: looking for others takes long."""


def main() -> None:
    """Run pytest with the arguments of this process, and exit as it does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-p", "hypothesispytest", *sys.argv[1:]]
        environment = {**os.environ, FOLDER: folder, NO_PLUGINS: "1"}
        exit_code = wait_for(command, environment, Path(folder))
    sys.exit(exit_code if exit_code >= 0 else SIGNALLED - exit_code)


def wait_for(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Run pytest and return its exit code; that of a command that was ended if a signal ended it.

    Pytest holds Ctrl-C back until its first test begins, and is killed by one before. From then on, it gets a
    terminal's Ctrl-C by itself, sums up and ends.
    """
    received: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in started:
            if number != signal.SIGINT or not tests_begun(folder).exists():
                end_tree(process)

    with handled(pass_on):
        with signals_held([signal.SIGINT]):
            started.append(subprocess.Popen(command, env=environment))
        for process in started:
            if received:  # while it started
                end_tree(process)
            while process.poll() is None and not tests_begun(folder).exists():
                time.sleep(POLL_SECONDS)
            hand_over()
            process.wait()
    if received and started[0].returncode != INTERRUPTED_EXIT_CODE:  # which pytest says itself
        say_interrupted()
    return SIGNALLED + received[0] if received else started[0].returncode


def end_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    process.kill()


if __name__ == "__main__":
    main()
