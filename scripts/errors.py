"""How commands end early: in a sentence or the word "interrupted", with an exit code and no stack trace.

`setup.py` calls `begin` before it imports anything else, so this imports only what takes no time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

TYPE_CHECKING = False  # of `typing`, which takes a while to import
if TYPE_CHECKING:
    from typing import NoReturn

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
SIGNALLED = 128
"""What shells add to a signal's number."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_CURSOR = "\x1b[?25h"
COMMAND = "COURSE_COMMAND"
"""In the environment of a command and of what it starts: the command's process id."""


def begin() -> bool:
    """From now on, let Ctrl-C end this process in a word, and in none if a command of the course started it.

    It ends at once until `usage_errors` begins: nothing needs to be cleaned up before.

    Returns:
        is_first: no command of the course started it.
    """
    is_first = os.environ.setdefault(COMMAND, str(os.getpid())) == str(os.getpid())
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the shell has turned it off
        signal.signal(signal.SIGINT, leave if is_first else signal.SIG_DFL)
    return is_first


def leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process on the spot."""
    say_interrupted()
    os._exit(SIGNALLED + number)


def say_interrupted() -> None:
    """Print "interrupted" on a line of its own, unless the command that started this process says it.

    A terminal shows its cursor from then on: a progress bar that was just beginning had hidden it.
    """
    pid = str(os.getpid())
    with suppress(OSError):  # the terminal is gone
        try:
            sys.stdout.flush()
            if os.environ.get(COMMAND, pid) == pid:
                cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
                line_start = getattr(sys.stderr, "line_start", "")
                print(f"{line_start}interrupted", end=f"\n{cursor}", file=sys.stderr, flush=True)
        except RuntimeError:  # the signal came amid a print
            os.write(2, b"\ninterrupted\n")


def interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came while Python ran a finalizer, which swallows whatever is raised in it."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    import threading  # here, since nearly no process needs it

    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError about the user's input into its sentence and exit code 2, Ctrl-C into 130.

    SIGTERM and SIGHUP end the block as Ctrl-C does, so that no child process and no file outlives them. After
    a signal the block ends as interrupted whatever it raises: an extension that is being imported makes an
    ImportError of Ctrl-C.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    try:
        with handled(interrupt), swallowed_interrupts_repeated():
            yield
    except BaseException as end:
        if not received and isinstance(end, ValueError):
            print(f"error: {end}", file=sys.stderr)
            sys.exit(USAGE_EXIT_CODE)
        if not received and not isinstance(end, KeyboardInterrupt):
            raise
        received.append(signal.SIGINT)
    if received:
        say_interrupted()
        sys.exit(SIGNALLED + received[0])


@contextmanager
def swallowed_interrupts_repeated() -> Iterator[None]:
    """Use `interrupt_again` until the block ends."""
    before, sys.unraisablehook = sys.unraisablehook, interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def handled(act: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle the signals that end a command, but those that are turned off."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, act)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_postponed() -> Iterator[None]:
    """Let a block run to its end before what would end the process is heard, whichever thread gets it."""
    received: list[int] = []
    with handled(lambda number, frame: received.append(number)):
        yield
    for number in received:
        signal.raise_signal(number)


@contextmanager
def signals_held(numbers: Collection[int] = ENDING_SIGNALS) -> Iterator[None]:
    """Hold back what would end the process; a child that starts meanwhile goes on holding it back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
