"""The line that a terminal shows while a command has nothing to print yet, such as "starting".

Whatever is printed next takes its place. `setup.py` shows it before it imports anything that takes long, so
this imports only the standard library. Nothing of it goes anywhere but to a terminal.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

LONGEST = 70  # characters
CLEAR = "\r\x1b[K"
JSON = "--json"


class Line:
    """The line at the cursor of a terminal, redrawn each second with the time so far."""

    def __init__(self) -> None:
        self.file: int | None = None  # the terminal's, wherever a test sends what is printed
        self.text = ""
        self.since = 0.0
        self.is_at_start = True  # the cursor, of a line
        self.lock = threading.RLock()
        self.thread: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Replace the line; no text removes it. Where something else stands in it, that stays."""
        with self.lock:
            if not self.is_at_start:
                text = ""
            if self.text and not text:
                self.draw(CLEAR)
            if text != self.text:
                self.text, self.since = text, time.monotonic()
            if text:
                self.draw_text()
                if self.thread is None or not self.thread.is_alive():
                    self.thread = threading.Thread(target=self.count_seconds, name="line", daemon=True)
                    self.thread.start()

    def count_seconds(self) -> None:
        """Draw the line each second, for as long as there is one."""
        while True:
            time.sleep(1)
            with self.lock:
                if not self.text:
                    self.thread = None
                    return
                self.draw_text()

    def draw_text(self) -> None:
        """Draw it with the cursor at its start, so that what a child process prints covers it."""
        seconds = int(time.monotonic() - self.since)
        self.draw(f"{CLEAR}{self.text[:LONGEST]}{f' ({seconds} s)' * (seconds > 0)}\r")

    def draw(self, text: str) -> None:
        """Write past all buffers; a terminal that is gone misses nothing."""
        assert self.file is not None
        with suppress(OSError):
            os.write(self.file, text.encode(errors="replace"))

    def forget(self) -> None:
        """Start over in a forked process: the line belongs to its parent."""
        self.text, self.lock, self.thread = "", threading.RLock(), None


class Stream:
    """A stream to a terminal on which what is printed takes the place of the line."""

    def __init__(self, stream: TextIO, line: Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        """Write a text in the place of the line, or of the "^C" that a terminal shows at the start of one."""
        with self._line.lock:
            self._line.show("")
            if self._line.is_at_start:
                self._line.draw(CLEAR)
            last = text[text.rfind("\n") + 1 :]
            if text:  # what hides or shows the cursor doesn't move it
                self._line.is_at_start = last.startswith("\x1b[?") if last else True
            return self._stream.write(text)

    def writelines(self, texts: list[str]) -> None:
        """Write texts likewise."""
        for text in texts:
            self.write(text)

    @property
    def line_start(self) -> str:
        """What a line of its own begins with: a line end where the cursor is behind a text."""
        return "" if self._line.is_at_start else "\n"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


LINE = Line()


def show_progress(text: str) -> None:
    """Replace the line, in a terminal only; no text removes it."""
    if text and not (sys.stderr.isatty() and JSON not in sys.argv):
        return
    if LINE.file is None:
        if not text:
            return
        LINE.file = os.dup(sys.stderr.fileno())
        if sys.stdout.isatty():
            sys.stdout = Stream(sys.stdout, LINE)
        sys.stderr = Stream(sys.stderr, LINE)
        atexit.register(show_progress, "")
        os.register_at_fork(after_in_child=LINE.forget)
    LINE.show(text)


def hand_over() -> None:
    """Leave the line as it stands to a process that is about to print in its place."""
    LINE.text = ""


def counted(title: str, items: Collection[T]) -> Iterator[T]:
    """The items, with a bar that shows how many have been dealt with."""
    for number, item in enumerate(items):
        show_progress(progress_of(title, number, len(items)))
        yield item
    show_progress("")


def progress_of(title: str, num_done: int, num_all: int) -> str:
    """A line with a bar, for `show_progress`."""
    filled = 20 * num_done // num_all if num_all else 0
    return f"{title} [{'#' * filled}{'-' * (20 - filled)}] {num_done} of {num_all}"
