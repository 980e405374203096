"""Keys from a terminal, which gets its settings back whatever ends the command."""

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
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    # Not sys.stdin.read: what it buffers, `select` does not see.
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"
