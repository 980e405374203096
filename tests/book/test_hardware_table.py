"""What hardware reports say: where the course works, a row per machine, and failures below it."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.hardware.report import SCHEMA, Report, Result, as_json, read_reports
from tests.book.small_books import faults_of, folders_in, page_of

SPEED = Result(
    "speed beside mlx-lm",
    "pdm run bench",
    "passed",
    9.0,
    {
        "decode alone, tiny-llm": 1166.4,
        "decode alone, mlx-lm as installed": 197.9,
        "decode of 8, tiny-llm": 4.25,
    },
    "",
)
FAILED = Result("kernels", "pdm run test", "failed", 3.0, {}, "first <line>\n\n{{#task 1}} $x and `softmx()`")
REPORT = Report(
    schema=SCHEMA,
    date="2026-11-22",
    machine={
        "processor": "Apple M2 Pro",
        "cores": 10,
        "memory_gb": 16,
        "gpu": "Apple M2 Pro",
        "system": "macOS 15.1",
    },
    versions={
        "course": "0123456789ab",
        "python": "3.12.1",
        "mlx": "0.32.4",
        "mlx_lm": "0.32.2",
        "backend": "Metal",
        "compiler": "Apple clang version 17",
        "settings": "none",
    },
    minutes=4.0,
    parts=(SPEED, FAILED),
)


def keep(tmp_path: Path, report: Report, name: str = "") -> None:
    """Put a report among the records of a book."""
    folder = folders_in(tmp_path).records / "hardware"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (name or report.file_name)).write_text(as_json(report), encoding="utf-8")


def test_a_machine_has_a_row_with_its_failures_below(tmp_path: Path) -> None:
    keep(tmp_path, REPORT)
    page = page_of(tmp_path, "{{#hardware}}", "hardware.md")
    assert page.found == []
    row, failure = page.rendered.split("<tbody>")[1].split("</tr>")[:2]
    cells = [cell.split(">")[-1] for cell in row.split("</td>")[:-1]]
    assert cells == [
        "Apple M2 Pro, 10 cores, 16 GB, macOS 15.1",
        "1 of 2 parts passed",
        "not measured / not measured",
        "1,166 / 197.9",
        "4.25 / not measured",
        "MLX 0.32.4 (Metal), course 0123456789ab, 2026-11-22",
    ]
    assert '<td colspan="6"><details><summary>kernels: failed</summary>' in failure
    assert "first &lt;line&gt;&#10;&#10;{{#task 1}} $x and `softmx()`</samp>" in failure


def test_the_answer_comes_first(tmp_path: Path) -> None:
    passed = replace(REPORT, parts=(SPEED,))
    on_linux = {**REPORT.versions, "backend": "CPU"}
    keep(tmp_path, replace(passed, machine={**REPORT.machine, "gpu": "none"}, versions=on_linux))
    keep(tmp_path, REPORT)
    text = page_of(tmp_path, "{{#hardware}}", "hardware.md").rendered
    assert text.strip().split("\n")[0] == (
        "**On a Linux CPU, it works:** every part of the reports below passed. "
        "**On a Mac with Apple silicon, parts of it failed:** the table below shows their output. "
        "**On an NVIDIA card, no one has reported a run yet.** The code is complete, but so far it "
        "has run only in emulation, on Linux: expect surprises there."
    )
    assert "all 1 parts passed" in text


def test_what_has_passed_everywhere_works_everywhere(tmp_path: Path) -> None:
    machine = {**REPORT.machine, "gpu": "NVIDIA H200"}
    for backend in ("Metal", "CUDA", "CPU"):
        keep(
            tmp_path,
            replace(
                REPORT,
                machine=machine,
                versions={**REPORT.versions, "backend": backend},
                parts=(SPEED, SPEED),
            ),
        )
    text = page_of(tmp_path, "{{#hardware}}", "hardware.md").rendered
    assert "**On a Linux CPU and on a Mac with Apple silicon and on an NVIDIA card, it works:**" in text
    assert "surprises" not in text
    assert text.count("all 2 parts passed") == 3
    assert "16 GB, NVIDIA H200" in text


def test_a_report_that_is_not_as_it_should_be_is_a_fault_of_the_page(tmp_path: Path) -> None:
    page = "# Title\n\n{{#hardware}}\n"
    sentence = "there is no hardware report in book/records/hardware/"
    assert faults_of(tmp_path, page, "hardware.md") == [(3, sentence)]
    keep(tmp_path, REPORT, "mine.json")
    ((_, sentence),) = faults_of(tmp_path, page, "hardware.md")
    assert (
        sentence == "mine.json must be named apple-m2-pro-10-cores-metal.json, as its machine and backend say"
    )


@pytest.mark.parametrize("outcome", ["not run", "interrupted"])
def test_an_incomplete_report_is_refused(tmp_path: Path, outcome: str) -> None:
    failure = "text" if outcome == "interrupted" else ""
    keep(tmp_path, replace(REPORT, parts=(replace(FAILED, outcome=outcome, failure=failure),)))
    with pytest.raises(ValueError, match="is not complete: run `pdm run hardware-report` to its end"):
        read_reports(folders_in(tmp_path).records / "hardware")
