"""The report: its parts, as JSON that can be read again, and as Markdown."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from scripts.hardware.privacy import without_paths

SCHEMA = 1
Outcome = Literal["passed", "failed", "out of time", "interrupted", "not run"]
Value: TypeAlias = "int | float | str | list[str]"
MACHINE = {"processor": str, "cores": int, "memory_gb": int, "gpu": str, "system": str}
VERSIONS = {
    "course": str,
    "python": str,
    "mlx": str,
    "mlx_lm": str,
    "backend": str,
    "compiler": str,
    "settings": str,
}


@dataclass(frozen=True)
class Result:
    """What became of one part.

    Args:
        name: of the part.
        command: what a reader types to run it alone.
        outcome: whether it passed, or why not.
        seconds: it took.
        results: its numbers by what they count or measure.
        failure: the end of its output; empty if it passed or did not run.
    """

    name: str
    command: str
    outcome: Outcome
    seconds: float
    results: dict[str, Value]
    failure: str


@dataclass(frozen=True)
class Report:
    """One run on one machine; `schema` is the version of this form."""

    schema: int
    date: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    minutes: float
    parts: tuple[Result, ...]

    @property
    def file_name(self) -> str:
        """The name under which the book keeps the report: one per kind of machine and backend."""
        words = [self.machine["processor"], self.machine["cores"], "cores", self.versions["backend"]]
        if self.versions["backend"] == "CUDA":
            words.append(self.machine["gpu"])
        return re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-") + ".json"

    @property
    def failed(self) -> list[Result]:
        """The parts that ran and did not pass."""
        return [part for part in self.parts if part.outcome not in ("passed", "not run")]


def as_json(report: Report) -> str:
    """The report with its keys in one order."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n"


def read_report(file: Path) -> Report:
    """Read a report of any machine.

    Raises:
        ValueError: it is not a report of this schema, or it holds a path.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(
            f"{file.name} is not a report of schema {SCHEMA}: run `pdm run hardware-report` again"
        )
    kinds = {"schema": int, "date": str, "machine": dict, "versions": dict, "minutes": (int, float)}
    check_keys(content, {**kinds, "parts": list}, f"{file.name}")
    check_keys(content["machine"], MACHINE, f"{file.name}, machine")
    check_keys(content["versions"], VERSIONS, f"{file.name}, versions")
    parts = tuple(
        read_part(part, f"{file.name}, part {i}") for i, part in enumerate(content["parts"], start=1)
    )
    for text in strings_in(content):
        if without_paths(text) != text:
            raise ValueError(f"{file.name} holds a path: take it out of {text.strip()[:80]!r}")
    return Report(**{**content, "parts": parts})


def read_reports(folder: Path) -> list[Report]:
    """The reports of a folder by their names, each complete and under the name that it must have.

    Raises:
        ValueError: one is not.
    """
    reports = []
    for file in sorted(folder.glob("*.json")):
        report = read_report(file)
        if file.name != report.file_name:
            raise ValueError(f"{file.name} must be named {report.file_name}, as its machine and backend say")
        if any(part.outcome in ("interrupted", "not run") for part in report.parts):
            raise ValueError(f"{file.name} is not complete: run `pdm run hardware-report` to its end")
        reports.append(report)
    return reports


def read_part(part: Any, where: str) -> Result:
    """One part; ValueError for what is not one."""
    kinds = {"name": str, "command": str, "outcome": str, "seconds": (int, float), "results": dict}
    check_keys(part, {**kinds, "failure": str}, where)
    if part["outcome"] not in get_args(Outcome):
        raise ValueError(
            f"{where}: the outcome {part['outcome']!r} must be one of {', '.join(get_args(Outcome))}"
        )
    if bool(part["failure"]) != (part["outcome"] not in ("passed", "not run")):
        raise ValueError(f"{where}: the text of a failure must be there if and only if the part failed")
    for name, value in part["results"].items():
        if isinstance(value, list):
            check_value(value, all(isinstance(text, str) for text in value), f"{where}, {name}")
        else:
            check_value(value, type(value) in (int, float, str), f"{where}, {name}")
    return Result(**part)


def check_keys(content: Any, kinds: dict[str, Any], where: str) -> None:
    """Demand an object with exactly these keys, in this order, and values of these types."""
    if not isinstance(content, dict) or list(content) != list(kinds):
        raise ValueError(f"{where} must have the keys {', '.join(kinds)}, in this order")
    for key, kind in kinds.items():
        right = isinstance(content[key], kind) and not isinstance(content[key], bool)
        check_value(content[key], right, f"{where}, {key}")


def check_value(value: Any, is_right: bool, where: str) -> None:
    """Raise ValueError for a value of the wrong type."""
    if not is_right:
        raise ValueError(f"{where}: the value {value!r} is of the wrong type")


def strings_in(content: Any) -> list[str]:
    """Every string of a JSON value."""
    if isinstance(content, str):
        return [content]
    values = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [text for value in values for text in strings_in(value)]


def as_markdown(report: Report) -> str:
    """The report for people."""
    lines = ["# Hardware report", "", f"Made on {report.date} in {report.minutes:.1f} minutes.", ""]
    lines += table(("machine", ""), [(key.replace("_", " "), value) for key, value in report.machine.items()])
    lines += table(
        ("version", ""), [(key.replace("_", " "), value) for key, value in report.versions.items()]
    )
    rows = [(part.name, part.outcome, f"{part.seconds:.0f}", results_line(part)) for part in report.parts]
    lines += table(("part", "outcome", "seconds", "results"), rows)
    for part in report.failed:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", part.failure)), default=0))
        lines += [f"## {part.name}: {part.outcome}", "", f"`{part.command}` printed at its end:", ""]
        lines += [f"{fence}text", part.failure, fence, ""]
    return "\n".join(lines)


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    """A Markdown table and an empty line."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(head)}", *lines[1:], ""]


def results_line(part: Result) -> str:
    """The results of a part on one line."""
    return "; ".join(f"{name}: {shown(value)}" for name, value in part.results.items() if value != [])


def shown(value: Value) -> str:
    """A result as text."""
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return str(value)
