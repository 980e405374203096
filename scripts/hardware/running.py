"""Run a command for a limited time, and leave no process of it behind."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.course import ROOT

GRACE_SECONDS = 5  # for a command that was interrupted to say what it was doing
PLAIN_OUTPUT = {
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONUTF8": "1",
    "TYPER_STANDARD_TRACEBACK": "1",
}


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed; the exit code is negative for a signal."""

    how: Literal["by itself", "out of time", "interrupted"]
    exit_code: int
    seconds: float
    output: str


def run(command: Sequence[str], limit: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command in the repository until it ends, time is up or the user interrupts.

    The command gets a process group of its own, which ends with it: Ctrl-C reaches this process alone.
    Output goes to a file, because a pipe would stay open as long as any grandchild lives.

    Args:
        command: the program and its arguments.
        limit: seconds; it may take GRACE_SECONDS more to end.
        environment: variables to add to those of this process.
    """
    how: Literal["by itself", "out of time", "interrupted"] = "by itself"
    start = time.monotonic()
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **PLAIN_OUTPUT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(limit, 0))
        except subprocess.TimeoutExpired:
            how = "out of time"
        except KeyboardInterrupt:
            how = "interrupted"
        finally:
            end(process)
        file.seek(0)
        output = file.read().decode("utf-8", errors="replace")
    return Ended(how, process.returncode, time.monotonic() - start, output)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt the command if it still runs, then kill what is left of its process group."""
    try:
        if process.poll() is None:
            signal_group(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group, if there is one left; macOS refuses it for zombies."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
