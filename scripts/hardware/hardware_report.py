"""Report what the course does on this machine, without saying whose it is."""

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.hardware.description import describe_machine, describe_versions
from scripts.hardware.parts import PARTS, Part
from scripts.hardware.privacy import Identity
from scripts.hardware.report import SCHEMA, Outcome, Report, Result, as_json, as_markdown, results_line
from scripts.hardware.running import GRACE_SECONDS, Ended, run

FAILED_EXIT_CODE = 1
LONGEST_FAILURE = 12_000  # characters of a part's output, its end
NAME = "hardware-report"

Minutes = Annotated[float, typer.Option(min=0.1, help="Most minutes in all, divided among the parts.")]
Output = Annotated[Path, typer.Option(help=f"Folder for {NAME}.md and {NAME}.json.")]
Parts = Annotated[list[str] | None, typer.Option("--part", help="Only this part; may be repeated.")]


def main(minutes: Minutes = 10, output: Output = Path(), part: Parts = None) -> None:
    """Run doctor, the kernels' tests, the comparisons, the benchmark and the demo; write what came of them.

    The report names the processor, GPU, system and versions, and no user, host or path. Read it before you
    share it; CONTRIBUTING.md says how. Exit code 1 says that a part failed or had no time left, 130 that you
    interrupted: then the parts that had ended are kept.

    Example: pdm run hardware-report --output /tmp
    """
    with usage_errors():
        deadline = time.monotonic() + 60 * minutes
        parts = chosen_parts(part)
        make_folder(output)
        report = make_report(parts, deadline, lambda report: write(report, output))
        share = f"CONTRIBUTING.md says how to share them, as {report.file_name}"
        print(f"{output / NAME}.md and .json written; {share}")
    sys.exit(FAILED_EXIT_CODE if report.failed else 0)


def chosen_parts(names: Sequence[str] | None) -> list[Part]:
    """The parts of these names, all without any; ValueError for a name that is none."""
    known = [part.name for part in PARTS]
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"there is no part {unknown[0]!r}: choose from {', '.join(known)}")
    return [part for part in PARTS if not names or part.name in names]


def make_folder(folder: Path) -> None:
    """Make the folder of the report; ValueError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{NAME}.md").touch()
    except OSError as error:
        raise ValueError(f"{folder} cannot take the report: {error.strerror}") from None


def write(report: Report, folder: Path) -> None:
    """Write both files."""
    (folder / f"{NAME}.json").write_text(as_json(report), encoding="utf-8")
    (folder / f"{NAME}.md").write_text(as_markdown(report), encoding="utf-8")


def make_report(parts: Sequence[Part], deadline: float, keep: Callable[[Report], None]) -> Report:
    """Run the parts one after the other, each within its share of the time that is left.

    Args:
        parts: to run.
        deadline: of all, on the monotonic clock.
        keep: called with the report so far after each part.
    """
    start = time.monotonic()
    identity = Identity.of_this_machine()
    today = datetime.now(timezone.utc).date().isoformat()
    versions = scrubbed(describe_versions(), identity)
    report = Report(SCHEMA, today, describe_machine(), versions, 0.0, ())
    console = Console(highlight=False)
    results = [Result(part.name, part.shown, "not run", 0.0, {}, "") for part in parts]
    for i, part in enumerate(parts):
        limit = limit_of(parts[i:], deadline - time.monotonic())
        with console.status(f"{part.name}, at most {limit:.0f} s"):
            results[i] = run_part(part, limit, identity)
        console.print(line_of(results[i]), markup=False, soft_wrap=True)
        minutes = round((time.monotonic() - start) / 60, 2)
        report = replace(report, minutes=minutes, parts=tuple(results))
        keep(report)
        if results[i].outcome == "interrupted":
            break
    return report


def limit_of(parts: Sequence[Part], seconds: float) -> float:
    """The seconds of the first of these parts, which share what is left."""
    return max(seconds - GRACE_SECONDS, 0) * parts[0].share / sum(part.share for part in parts)


def run_part(part: Part, limit: float, identity: Identity) -> Result:
    """Run one part and read its results."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run(part.to_run(Path(folder)), limit, part.environment)
        outcome, reason, results = judge(part, ended, Path(folder))
    failure = ""
    if outcome != "passed":
        failure = f"{reason}\n\n{end_of(identity.scrub(ended.output).strip())}".strip()
    return Result(
        part.name, part.shown, outcome, round(ended.seconds, 1), scrubbed(results, identity), failure
    )


def end_of(text: str) -> str:
    """The last lines of a text, as many as are kept."""
    if len(text) <= LONGEST_FAILURE:
        return text
    end = text[-LONGEST_FAILURE:]
    return end[end.find("\n") + 1 :]


def judge(part: Part, ended: Ended, folder: Path) -> tuple[Outcome, str, dict[str, Any]]:
    """The outcome of a part, the reason where it did not pass, and the results that can be read anyway."""
    try:
        results, reason = part.read(ended.output, folder), ""
    except (ValueError, KeyError, TypeError) as error:
        results, reason = {}, f"its results cannot be read: {error}"
    if ended.how == "interrupted":
        return "interrupted", f"interrupted after {ended.seconds:.0f} s", results
    if ended.how == "out of time":
        return "out of time", f"stopped after {ended.seconds:.0f} s", results
    if ended.exit_code < 0:
        return "failed", f"ended by {signal.Signals(-ended.exit_code).name}", results
    if ended.exit_code:
        return "failed", f"ended with exit code {ended.exit_code}", results
    return ("failed" if reason else "passed"), reason, results


def scrubbed(results: dict[str, Any], identity: Identity) -> dict[str, Any]:
    """The results with names and paths taken out of their texts."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(each) for each in value]
        return identity.scrub(value) if isinstance(value, str) else value

    return {name: clean(value) for name, value in results.items()}


def line_of(result: Result) -> str:
    """Name, outcome, time and results."""
    return f"{result.name:20} {result.outcome:11} {result.seconds:5.0f} s  {results_line(result)}"


if __name__ == "__main__":
    run_command(main, "hardware-report")
