"""The table of hardware reports, one row per machine, made from their files."""

from pathlib import Path

from scripts.book.blocks import one_line, output_block
from scripts.book.problems import ChapterError
from scripts.hardware.report import Report, Result, read_reports, shown

SPEED = "speed beside mlx-lm"
ENGINES = ("tiny-llm", "mlx-lm as installed")
WORKLOADS = ("prefill of 512", "decode alone", "decode of 8")
COLUMNS = ("machine", "system", "MLX", "course", "parts passed", *WORKLOADS)
BACKENDS = {"Metal": "Apple silicon (Metal)", "CUDA": "an NVIDIA card (CUDA)", "CPU": "a Linux CPU"}


def hardware_table(folder: Path) -> str:
    """The table, and a sentence that names the backends without a report.

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
    gaps = sentence_of_gaps({report.versions["backend"] for report in reports})
    return f'<div class="table-wrapper">{table}</div>\n\n{gaps}'


def sentence_of_gaps(backends: set[str]) -> str:
    """What has not run anywhere yet; nothing if everything has."""
    missing = [name for backend, name in BACKENDS.items() if backend not in backends]
    if not missing:
        return ""
    return (
        f"**No report has come from {' or from '.join(missing)} yet.** "
        "What we know about the course there comes from tests on Linux that stand in for the machine."
    )


def row_of(report: Report) -> str:
    """One machine."""
    machine, versions = report.machine, report.versions
    gpu = "" if machine["gpu"] in ("none", machine["processor"]) else f", {machine['gpu']}"
    num_passed = sum(part.outcome == "passed" for part in report.parts)
    cells = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB{gpu}",
        str(machine["system"]),
        f"{versions['mlx']}, {versions['backend']}",
        f"{versions['course']}, {report.date}",
        f"{num_passed} of {len(report.parts)}",
        *(speed_of(report, workload) for workload in WORKLOADS),
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
