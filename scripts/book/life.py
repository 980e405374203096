"""The tables of what a request and one decode step go through, from a trace that is kept as a record."""

import ast
import json
from html import escape
from pathlib import Path
from typing import Any

from scripts.book.problems import ChapterError
from scripts.course import ROOT
from scripts.sources.files import is_python
from scripts.sources.functions import count_code, functions_of

RECORD = "life.json"
ADVICE = "record it again with `pdm run author record-life`"
THREADS = {"MainThread": "event loop", "tokenizer_0": "tokenizer"}
COLUMNS = ("", "file, and what it is", "thread", "functions", "lines")
Life = dict[str, list[dict[str, Any]]]
"""The files that a request and a step go through, in the order in which each is first entered."""


def read_life(file: Path) -> Life:
    """The record.

    Raises:
        ChapterError: there is none, or it names a file or function that no longer exists.
    """
    if not file.exists():
        raise ChapterError(f"there is no record {file.name}", is_missing=True)
    life: Life = json.loads(file.read_text(encoding="utf-8"))
    gone = [name for way in life.values() for stop in way for name in missing_from(stop)]
    if gone:
        raise ChapterError(f"{file.name} names what no longer exists, {', '.join(gone)}: {ADVICE}")
    return life


def missing_from(stop: dict[str, Any]) -> list[str]:
    """The file if it does not exist, or those of its functions that don't."""
    path = ROOT / stop["file"]
    if not path.is_file():
        return [stop["file"]]
    present = {each.name for each in functions_of(path)} if is_python(path) else set(stop["functions"])
    return [f"{each} of {stop['file']}" for each in stop["functions"] if each not in present]


def life_table(file: Path, name: str) -> str:
    """The totals of a way, "request" or "step", and a row for each file.

    Raises:
        ChapterError: the record has no such way; or as for `read_life`.
    """
    life = read_life(file)
    if name not in life:
        raise ChapterError(f"{{{{#life {name}}}}}: choose one of {', '.join(life)}")
    way = life[name]
    num_functions = sum(len(stop["functions"]) for stop in way)
    num_lines = sum(lines_of(stop) for stop in way)
    total = f"**{len(way)} files, {num_functions} functions, {num_lines:,} lines of Python.**"
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row_of(number, stop) for number, stop in enumerate(way, 1))]
    return f"{total}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def row_of(number: int, stop: dict[str, Any]) -> list[str]:
    """One file: its docstring's first line says what it is, and its functions are listed on a click."""
    path = ROOT / stop["file"]
    names = ", ".join(f"<code>{each}</code>" for each in stop["functions"])
    functions = f"<details><summary>{len(stop['functions'])}</summary>{names}</details>"
    threads = ", ".join(THREADS.get(each, each) for each in stop["threads"])
    lines = str(lines_of(stop)) if is_python(path) else ""
    return [str(number), f"<code>{stop['file']}</code><br>{summary_of(path)}", threads, functions, lines]


def lines_of(stop: dict[str, Any]) -> int:
    """Lines of code of its functions; 0 for a kernel."""
    path = ROOT / stop["file"]
    return count_code(path, stop["functions"]) if is_python(path) else 0


def summary_of(path: Path) -> str:
    """The first line of a module's docstring."""
    if not is_python(path):
        return "A kernel."
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return escape(text.partition("\n")[0], quote=False).replace("|", "&#124;")
