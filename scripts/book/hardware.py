"""Where the course works, as far as hardware reports say: an answer, and a row per machine."""

from collections.abc import Sequence
from pathlib import Path

from scripts.book.blocks import one_line, output_block
from scripts.book.problems import ChapterError
from scripts.hardware.report import Report, Result, read_reports, shown

SPEED = "speed beside mlx-lm"
ENGINES = ("tiny-llm", "mlx-lm as installed")
WORKLOADS = ("prefill of 512", "decode alone", "decode of 8")
COLUMNS = ("machine", "what happened", *WORKLOADS, "with")
BACKENDS = {"CPU": "a Linux CPU", "Metal": "a Mac with Apple silicon", "CUDA": "an NVIDIA card"}


def hardware_table(folder: Path) -> str:
    """The answer and the table.

    Raises:
        ChapterError: there is no report, or one is not as it should be.
    """
    try:
        reports = read_reports(folder)
    except ValueError as error:
        raise ChapterError(str(error)) from None
    if not reports:
        raise ChapterError("there is no hardware report in book/records/hardware/", is_missing=True)
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = "".join(row_of(report) + "".join(map(failure_row, report.failed)) for report in reports)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'{answer(reports)}\n\n<div class="table-wrapper">{table}</div>'


def answer(reports: Sequence[Report]) -> str:
    """Where the course works, where parts of it failed, and where no one has run it yet."""
    reported = {report.versions["backend"] for report in reports}
    failing = {report.versions["backend"] for report in reports if report.failed}
    sentences = {
        "**On {}, it works:** every part of the reports below passed.": reported - failing,
        "**On {}, parts of it failed:** the table below shows their output.": failing,
        "**On {}, no one has reported a run yet.** The code is complete, but so far it has run "
        "only in emulation, on Linux: expect surprises there.": BACKENDS.keys() - reported,
    }
    return " ".join(
        sentence.format(" and on ".join(name for kind, name in BACKENDS.items() if kind in kinds))
        for sentence, kinds in sentences.items()
        if kinds
    )


def row_of(report: Report) -> str:
    """One machine."""
    machine, versions = report.machine, report.versions
    gpu = "" if machine["gpu"] in ("none", machine["processor"]) else f", {machine['gpu']}"
    size = f"{machine['cores']} cores, {machine['memory_gb']} GB{gpu}"
    num_passed = sum(part.outcome == "passed" for part in report.parts)
    num_parts = f"{num_passed} of {len(report.parts)}" if report.failed else f"all {num_passed}"
    cells = [
        f"{machine['processor']}, {size}, {machine['system']}",
        f"{num_parts} parts passed",
        *(speed_of(report, workload) for workload in WORKLOADS),
        f"MLX {versions['mlx']} ({versions['backend']}), course {versions['course']}, {report.date}",
    ]
    return "<tr>" + "".join(f"<td>{one_line(cell)}</td>" for cell in cells) + "</tr>"


def speed_of(report: Report, workload: str) -> str:
    """Tokens/s of the course and of mlx-lm, as far as they were measured."""
    results = next((part.results for part in report.parts if part.name == SPEED), {})
    rates = [results.get(f"{workload}, {engine}") for engine in ENGINES]
    return " / ".join("not measured" if rate is None else shown(rate) for rate in rates)


def failure_row(part: Result) -> str:
    """What a part printed that did not pass, on a click."""
    summary = f"<summary>{one_line(part.name)}: {part.outcome}</summary>"
    details = f"<details>{summary}{output_block(part.failure)}</details>"
    return f'<tr><td colspan="{len(COLUMNS)}">{details}</td></tr>'
