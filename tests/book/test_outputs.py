"""Outputs that are kept in the repository: taken without a run, compared, and kept anew."""

from pathlib import Path

import pytest

from scripts.book.build import build
from scripts.book.figures import commands_of
from scripts.book.outputs import Mode, Outputs, is_alike, read_parts
from scripts.book.page import Page
from scripts.book.recording import keep_outputs
from scripts.course import ROOT
from tests.book.small_books import DAY, book_in

FENCES = (
    "# Day\n\n```python\nprint(1 / 3)\n```\n\n```python\nprint(7)\n```\n\n{{#figure made wide=7 | See.}}\n"
)
FIGURE = "import sys\n\nprint(f'<svg><title>{sys.stdin.read()}</title></svg>')\n"


def kept_book(tmp_path: Path) -> Outputs:
    """A book whose outputs are kept, as a clone has it: nothing was run on this machine."""
    folders = book_in(tmp_path, {DAY: FENCES})
    (folders.book / "figures").mkdir()
    (folders.book / "figures" / "made.py").write_text(FIGURE)
    assert keep_outputs(folders) == []
    for file in folders.cache.iterdir():
        file.unlink()
    return Outputs(folders)


def edit(outputs: Outputs, old: str, new: str) -> None:
    file = (outputs.folders.outputs / DAY).with_suffix(".json")
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def faults_of(outputs: Outputs) -> list[str]:
    """What comparing finds."""
    result = build(Outputs(outputs.folders, Mode.COMPARE), is_partial=True)
    return [str(problem) for problem in result.problems]


def test_a_clone_runs_nothing(tmp_path: Path) -> None:
    outputs = kept_book(tmp_path)
    edit(outputs, "0.333333", "0.111111")  # nothing but a run would know better
    assert build(outputs, is_partial=True).problems == []
    assert "0.111111" in (outputs.folders.build / "week-2" / "day-7.html").read_text(encoding="utf-8")
    assert list(outputs.folders.cache.iterdir()) == []


def test_only_code_that_changed_is_run(tmp_path: Path) -> None:
    outputs = kept_book(tmp_path)
    edit(outputs, "0.333333", "0.111111")
    (outputs.folders.book / "figures" / "other.py").write_text("")
    (outputs.folders.book / "figures" / "made.py").write_text(FIGURE.replace("<svg>", "<svg id=a>"))
    page = Page(Path(DAY), FENCES.replace("See.", "Look."), outputs)
    assert "0.111111" in page.render()
    assert "<svg id=a>" in page.render()
    assert "0.333333" in Page(Path(DAY), FENCES.replace("print(7)", "print(8)"), outputs).render()


def test_a_check_names_each_output_that_is_not_kept_so(tmp_path: Path) -> None:
    outputs = kept_book(tmp_path)
    assert faults_of(outputs) == []
    edit(outputs, "0.333333", "0.333444")  # as another processor might round
    assert faults_of(outputs) == []
    edit(outputs, "0.333444", "0.343444")
    edit(outputs, '"7"', '"8"')
    edit(outputs, '{\\"wide', '{\\"high')
    (outputs.folders.outputs / "old.json").write_text('{"fences": {}}')
    advice = "run `pdm run book record --outputs`"
    faults = faults_of(outputs)
    assert f"book/src/{DAY}:4: this prints '0.3333333333333333' now: {advice}" in faults
    assert f"book/src/{DAY}:8: this prints '7' now: {advice}" in faults
    assert any(f"book/src/{DAY}:11: the figure made: this prints '<svg>" in fault for fault in faults)
    assert f"book/outputs/old.json: no page has what 'fences' is the output of: {advice}" in faults
    assert len(faults) == 4
    assert keep_outputs(outputs.folders) == []  # the check has run it, so this is believed
    assert faults_of(outputs) == []


def test_outputs_of_what_is_gone_go(tmp_path: Path) -> None:
    outputs = kept_book(tmp_path)
    (outputs.folders.src / DAY).write_text(
        FENCES.replace("{{#figure made wide=7 | See.}}", ""), encoding="utf-8"
    )
    assert keep_outputs(outputs.folders) == []
    (file,) = outputs.folders.outputs.rglob("*.json")
    assert [*read_parts(file)] == ["fences"]
    (outputs.folders.src / DAY).write_text("# Day\n", encoding="utf-8")
    assert keep_outputs(outputs.folders) == []
    assert not file.exists()


def test_a_check_names_code_without_a_kept_output(tmp_path: Path) -> None:
    outputs = kept_book(tmp_path)
    (outputs.folders.src / DAY).write_text(FENCES.replace("print(7)", "print(3 + 4)"), encoding="utf-8")
    (fault,) = faults_of(outputs)
    assert fault.startswith(f"book/src/{DAY}:4: no output of this is kept: run")


def test_only_the_words_of_a_measurement_are_compared(tmp_path: Path) -> None:
    code = "from time import time_ns\n\nprint(f'{time_ns() % 7919 / 3:9,.1f} ns')"
    outputs = Outputs(
        book_in(tmp_path, {DAY: f"# Day\n\n```python,varies\n{code.replace(chr(39), chr(34))}\n```\n"})
    )
    assert keep_outputs(outputs.folders) == []
    edit(outputs, " ns", "0 ns")
    assert faults_of(outputs) == []
    edit(outputs, " ns", " ms")
    assert len(faults_of(outputs)) == 1


def test_a_figure_is_drawn_again_if_a_command_that_it_imports_changes() -> None:
    found = {
        file.relative_to(ROOT).as_posix() for file in commands_of(ROOT / "book/figures/chunking-curve.py")
    }
    assert {"benches/chunk_sweep.py", "benches/trade_off.py"} <= found


def test_a_folder_of_this_machine_is_not_kept(tmp_path: Path) -> None:
    folders = book_in(tmp_path, {DAY: '# Day\n\n```python\nprint("/home/somebody/x")\n```\n'})
    (problem,) = keep_outputs(folders)
    assert "names a folder of this machine, /home/somebody/x" in problem.text
    assert not folders.outputs.exists()


def test_pages_can_be_read_before_they_are_checked(tmp_path: Path) -> None:
    folders = book_in(tmp_path, {DAY: "# Day\n\n`softmx()`\n"})
    read: list[str] = []
    page = folders.build / "week-2" / "day-7.html"
    ready = lambda: read.append(page.read_text(encoding="utf-8"))  # noqa: E731
    (problem,) = build(Outputs(folders), is_partial=True, ready=ready).problems
    assert "the packages have no `softmx`" in problem.text
    assert "softmx" in read[0]


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("a 1.000 b", "a 1.001 b", True),  # one unit of the last place
        ("a 1.000 b", "a 1.002 b", False),
        ("1234.56", "1235.56", True),  # within the tolerance
        ("1234.56", "1236.56", False),
        ("2.5e-07", "2.6e-07", True),
        ("2.5e-07", "2.7e-07", False),
        ("-0.0", "0.0", True),
        ("12 tokens", "13 tokens", False),
        ("1000000", "1000001", False),
        ("1.5 ms", "1.5 s", False),
        ("1.5", "1.5 1.5", False),
        ("#e1e050", "#e1e051", False),
    ],
)
def test_decimals_may_differ_in_their_last_digits(old: str, new: str, alike: bool) -> None:
    assert is_alike(old, new) == alike
