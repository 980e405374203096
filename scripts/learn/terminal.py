"""Read single keys from a terminal and restore its settings however the command ends."""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator


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


def read_key() -> str:
    """The key that was pressed, or ""; q at the end of the input."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    # Not sys.stdin.read: what it buffers, `select` does not see.
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"
