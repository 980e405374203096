"""Where something is: a task of the course, a line of a file, the definition of a symbol."""

import ast
import importlib.util
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.course import ROOT, Day, Task, load_course
from scripts.sources.c_source import line_of_function
from scripts.sources.files import find_symbol, is_python
from tests.support.calls import tree_of

DAY_TEST = re.compile(r"test_week_(\d+)_day_(\d+)\.py(?:::test_task_(\d+)_)?")


@dataclass(frozen=True, order=True)
class Where:
    """The task that a test belongs to; task 0 is the file as a whole."""

    week: int
    day: int
    task: int

    @classmethod
    def of(cls, nodeid: str) -> "Where | None":
        """Of a test of a day; None for any other."""
        found = DAY_TEST.search(nodeid)
        return cls(*(int(number or 0) for number in found.groups())) if found else None

    def __str__(self) -> str:
        return f"week {self.week} day {self.day}" + (f" task {self.task}" if self.task else "")

    @property
    def heading(self) -> str:
        """The task with its title, or the day with its."""
        titled = in_course(self)
        return f"{self}: {titled.title}" if titled else str(self)


@cache
def in_course(where: Where) -> Task | Day | None:
    """The task, or the day of task 0; None if the course has no such."""
    try:
        day = load_course().day(where.week, where.day)
        return day.task(where.task) if where.task else day
    except ValueError:
        return None


@dataclass(frozen=True)
class Place:
    """A line of a file, and what stands there."""

    file: Path
    line: int
    source: str = ""

    def lines(self) -> list[str]:
        """One line that an editor can follow, and the source if there is any."""
        place = f"  {relative(self.file)}:{self.line}"
        return [place, f"      {self.source}"] if self.source else [place]


def place_of(frame: Any) -> Place:
    """Where a frame is, with its whole statement."""
    return place_at(Path(frame.path), frame.lineno + 1)


def place_at(file: Path, line: int) -> Place:
    """A line of Python with its whole statement."""
    node = statement_at(file, line)
    body = getattr(node, "body", [])
    first, last = (node.lineno, node.end_lineno or line) if node else (line, line)
    if body:  # only its head
        first, last = (first, max(first, body[0].lineno - 1)) if line < body[0].lineno else (line, line)
    lines = linecache.getlines(str(file))[first - 1 : last]
    return Place(file, line, on_one_line(lines))


def on_one_line(lines: Sequence[str]) -> str:
    """A statement as it would stand in one line."""
    return " ".join(" ".join(lines).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")


@cache
def statement_at(file: Path, line: int) -> ast.stmt | None:
    """The innermost statement of a source that has a line."""
    nodes = statements_of(str(file))
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: node.lineno, default=None)


@cache
def statements_of(file: str) -> list[ast.stmt]:
    """All statements of a source, those within others too."""
    return [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.stmt)]


@cache
def definition(symbol: str) -> Place | None:
    """The line at which a symbol of the map is defined; None if it cannot be found."""
    try:
        path, dotted = find_symbol(symbol, package_folder())
    except KeyError:
        return None
    file = package_folder() / path
    source = file.read_text(encoding="utf-8", errors="replace")
    line = (line_in_python if is_python(path) else line_of_function)(source, dotted)
    return Place(file, line, source.splitlines()[line - 1].strip()) if line else None


def line_in_python(source: str, dotted: str) -> int | None:
    """The line at which a module defines a class or what is called; None if it cannot be found."""
    try:
        node: Any = ast.parse(source)
    except SyntaxError:
        return None
    for name in dotted.split("."):
        node = next((each for each in getattr(node, "body", []) if getattr(each, "name", "") == name), None)
    is_called = node and not any(getattr(each, "id", "") == "property" for each in node.decorator_list)
    return node.lineno if is_called else None


@cache
def is_learners(file: Path) -> bool:
    """Whether a file belongs to the package under test."""
    return package_folder() in file.resolve().parents


@cache
def package_folder() -> Path:
    """The folder of what is called tiny_llm."""
    spec = importlib.util.find_spec("tiny_llm")  # also when its import failed
    return Path(spec.origin).resolve().parent if spec and spec.origin else ROOT / "tiny_llm"


def relative(file: Path) -> Path:
    """A path from the folder that the package, or the course, is in."""
    for folder in (package_folder().parent, ROOT):
        if folder in file.resolve().parents:
            return file.resolve().relative_to(folder)
    return file
