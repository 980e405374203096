"""Sentences about numbers: what an output must show, and that no other one is kept."""

from pathlib import Path

import pytest

from scripts.book import recording
from scripts.book.assertions import row
from scripts.book.outputs import Mode, Outputs
from scripts.book.page import Page
from scripts.book.recording import keep_outputs
from scripts.book.records import load_records, record_file
from scripts.hardware.quiet import ACCEPT_BUSY
from tests.book.small_books import DAY, book_in, faults_of, folders_in, keep_records, record_of

COMMAND = "pdm run doctor"
TABLE = "one\n  1    2,718  1.00x\n 16 7.5 ms\ntwo\n 1 -3 61.0/s, 69% of int8\n16 0"
CODE = """\
from pathlib import Path
from time import time_ns

number = 7 if Path(FILE).exists() else 9
print(f"wait: {number} ms at {time_ns()}")"""


@pytest.mark.parametrize(
    ("starts", "numbers"),
    [
        (("1",), [2718, 1]),
        (("16",), [7.5]),
        (("two", "1"), [-3, 61, 69]),
        (("one", "two"), []),
    ],
)
def test_a_row_is_found_by_its_first_words(starts: tuple[str, ...], numbers: list[float]) -> None:
    assert row(TABLE, *starts) == numbers


def test_a_row_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no line starts with 'two' and then 'one'"):
        row(TABLE, "two", "one")


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ('row("one", "1")[0] > 2000', ""),
        ('row("one", "1")[0] < 2000', "the output above does not show what the text says: "),
        ('row("three")', "fails: ValueError: no line starts with 'three'"),
        ("row(", "fails: SyntaxError"),
    ],
)
def test_a_record_that_breaks_its_sentence_is_refused_with_its_line(
    expression: str, fault: str, tmp_path: Path
) -> None:
    keep_records(folders_in(tmp_path), record_of(COMMAND, TABLE))
    text = f"Text.\n\n```console\n$ {COMMAND}\n```\n\nIt is fast. <!-- assert: {expression} -->\n"
    faults = faults_of(tmp_path, text)
    assert [line for line, _ in faults] == ([7] if fault else [])
    assert all(fault in sentence for _, sentence in faults)


def test_an_assertion_needs_an_output_above_it(tmp_path: Path) -> None:
    text = f"```console,bare\n$ {COMMAND}\n```\n\nFast. <!-- assert: True -->\n"
    assert (5, "there is no output above this assertion") in faults_of(tmp_path, text)


def test_no_record_is_kept_that_breaks_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "record", lambda command: record_of(command, "wait: 9 ms"))
    monkeypatch.setenv(ACCEPT_BUSY, "1")
    folders = folders_in(tmp_path)
    text = f'```console\n$ {COMMAND}\n```\n\nFast. <!-- assert: row("wait:")[0] < 8 -->\n'
    (folders.src / "setup.md").write_text(text, encoding="utf-8")
    keep_records(folders, record_of(COMMAND, "wait: 7 ms"), path="setup.md")
    (problem,) = recording.record_pages(folders, ["setup"], before="9999")
    assert (problem.line, "this is the new one:\nwait: 9 ms" in problem.text) == (2, True)
    assert load_records(record_file(folders.records, Path("setup.md")))[COMMAND].output == "wait: 7 ms"


def test_no_output_of_code_is_kept_that_breaks_a_sentence(tmp_path: Path) -> None:
    """What a busy machine prints is neither kept nor remembered, and fails no check afterwards."""
    is_fast = tmp_path / "fast"
    code = CODE.replace("FILE", f'"{is_fast}"')
    text = f'# Day\n\n```python,varies\n{code}\n```\n\nFast. <!-- assert: row("wait:")[0] < 8 -->\n'
    folders = book_in(tmp_path, {DAY: text})
    (problem,) = keep_outputs(folders)
    assert (problem.line, "it printed 'wait: 9 ms at" in problem.text) == (11, True)
    assert not folders.outputs.exists()
    is_fast.touch()
    assert keep_outputs(folders) == []
    is_fast.unlink()
    for file in folders.cache.iterdir():
        file.unlink()
    page = Page(Path(DAY), text, Outputs(folders, Mode.COMPARE))
    assert "wait: 7 ms" in page.render()
    assert page.found == page.check() == []
