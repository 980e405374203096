"""Ctrl-C in a terminal ends every command with one line, at any moment, and leaves no process behind."""

import os
import signal
import time
import uuid
from itertools import cycle
from pathlib import Path

import psutil
import pytest

from scripts.book.commands import scripts
from scripts.errors import handled
from tests.support.terminals import CTRL_C, Terminal

ENDED = (0, 1, -signal.SIGINT)
"""Codes of a command that had ended before, the last one while Python cleared up."""
MARK = "COURSE_TEST_MARK"
PYTHON = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
MOMENTS = (0.5, 0.15, 0.3, 0.9)
"""Seconds after the first line, one for each command: they spread over imports and work."""
COMMANDS = {
    "setup": ("--group", "book"),
    "demo": (),
    "generate": ("x",),
    "serve": ("--port", "0"),
    "trace": ("--out", "OUT"),
    "get-model": ("qwen3-kjv-4m",),
    "test": ("--ref", "--week", "1", "--day", "1"),
    "hint": ("--week", "1", "--day", "1", "--task", "1", "--again"),
    "progress": ("--week", "1"),
    "watch": ("--week", "1"),
    "compare": ("--week", "1", "--day", "1"),
    "catch-up": ("--to", "w1d1"),
    "reset": ("--week", "1", "--day", "1", "--task", "1"),
    "museum": ("evicted", "--ref"),
    "doctor": (),
    "book": ("check",),
    "bench": ("chunking",),
    "hardware-report": ("--part", "doctor", "--output", "FOLDER"),
    "author": ("states",),
}


def test_no_command_is_left_out() -> None:
    assert COMMANDS.keys() == scripts().keys() - {"check"}


def interrupted(name: str, folder: Path, moment: float) -> tuple[int, list[str], str]:
    """Exit code, screen and all output of a command that gets a Ctrl-C at a moment after its first line."""
    arguments = [
        {"OUT": str(folder / "run.json"), "FOLDER": str(folder)}.get(word, word) for word in COMMANDS[name]
    ]
    module = scripts()[name]
    mark = os.environ[MARK] = uuid.uuid4().hex
    start = ["-m", module] if name == "doctor" else ["scripts/setup.py", *(["-m", module] if module else [])]
    terminal = Terminal(PYTHON, *start, *arguments)
    try:
        terminal.wait_for("starting")
        time.sleep(moment)
        terminal.press(CTRL_C)
        code = terminal.exit_code()
        left = [each for each in psutil.process_iter() if has_mark(each, mark)]
        assert psutil.wait_procs(left, timeout=60)[1] == []
        return code, terminal.screen(), terminal.all_text
    finally:
        terminal.close()


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Whether a process was started by the command of a mark."""
    try:
        return process.environ().get(MARK) == mark
    except psutil.Error:
        return False


@pytest.mark.parametrize(("name", "moment"), [*zip(COMMANDS, cycle(MOMENTS), strict=False)])
def test_ctrl_c_ends_a_command_with_one_line(
    name: str, moment: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, "")
    for seconds in (0.0, moment):
        code, screen, text = interrupted(name, tmp_path, seconds)
        while code in ENDED and "interrupted" not in text and seconds:
            seconds = seconds / 2 if seconds > 0.01 else 0.0
            code, screen, text = interrupted(name, tmp_path, seconds)
        assert "Traceback" not in text
        if code in ENDED and "interrupted" not in text:
            continue  # it had ended before the signal came
        assert (code, screen[-1:], screen.count("interrupted")) == (130, ["interrupted"], 1), text


SWALLOWED = {
    "by what it calls": """
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pass
    """,
    "for an error of another kind": """
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("an extension")
    """,
    "by a finalizer": """
        class Dies:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
        Dies()
        while True:
            time.sleep(0.01)
    """,
}


@pytest.mark.parametrize("lines", SWALLOWED.values(), ids=SWALLOWED.keys())
def test_a_signal_that_is_swallowed_ends_the_command_too(lines: str) -> None:
    begin = "import os, signal, time\nfrom scripts.errors import usage_errors\nwith usage_errors():"
    terminal = Terminal(begin + lines)
    assert terminal.exit_code() == 128 + signal.SIGTERM
    assert terminal.screen() == ["interrupted"]


def test_the_cursor_is_back_after_a_bar_that_was_just_beginning() -> None:
    hidden = "import sys; sys.stdout.write('\\x1b[?25l')"
    terminal = Terminal(f"{hidden}; from scripts.errors import leave; leave()")
    assert terminal.exit_code() == 130
    assert terminal.screen() == ["interrupted"]


def test_a_signal_that_is_turned_off_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(lambda *_: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
