"""Read single keys from a terminal and restore its settings however the command ends."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def key_presses() -> Iterator[None]:
    """Read keys one by one without echo; restore the terminal's settings at the end."""
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """Run every `finally` before SIGTERM or a closed window ends the process."""
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
    """The key that was pressed, or ""; q at the end of the input."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    # Not sys.stdin.read: what it buffers, `select` does not see.
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"
