"""The line of a command that has nothing to print yet: in a terminal only, and never beside a text."""

import os
import subprocess
import sys

from scripts.course import ROOT
from scripts.waiting import Line, progress_of
from tests.support.terminals import Terminal

CODE = """
import sys
from scripts.waiting import counted, show_progress
show_progress("at work")
print("a row")
for _ in counted("items", range(2)):
    pass
print("half of ", end="")
show_progress("not here")
print("a row")
print("an error", file=sys.stderr)
show_progress("at the end")
"""
ROWS = ["a row", "half of a row", "an error"]


def shown(*arguments: str) -> tuple[list[str], str]:
    """What is left on the screen of a terminal, and all that was written to it."""
    terminal = Terminal(CODE, *arguments)
    try:
        assert terminal.exit_code() == 0
        return terminal.screen(), terminal.all_text
    finally:
        terminal.close()


def test_what_is_printed_takes_the_place_of_the_line() -> None:
    screen, text = shown()
    assert screen == ROWS
    for words in ("at work", "items [##########----------] 1 of 2", "at the end"):
        assert words in text
    assert "not here" not in text


def test_programs_that_read_the_output_get_nothing_of_it() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("a row\nhalf of a row\n", "an error\n")
    screen, text = shown("--json")
    assert (screen, "at work" in text) == (ROWS, False)


def test_a_bar_of_nothing_is_empty() -> None:
    assert progress_of("items", 0, 0) == f"items [{'-' * 20}] 0 of 0"


def test_a_forked_process_leaves_its_parents_line_alone() -> None:
    reading, writing = os.pipe()
    line = Line()
    line.file = writing
    line.show("at work")
    before = os.read(reading, 100)
    assert b"at work" in before
    line.forget()
    line.show("")
    os.close(writing)
    assert os.read(reading, 100) == b""
    os.close(reading)
