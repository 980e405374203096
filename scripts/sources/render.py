"""The package at any stage of the course, made from the reference: bodies of unsolved symbols become holes.

`render` keeps signatures, types and docstrings. Of the solution nothing else stays: private helpers,
constants and imports that only the removed bodies used go with them.
"""

import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.course import ROOT, Course, Task, load_course
from scripts.sources.chunks import Chunk, drop_unused, droppable, join
from scripts.sources.files import HEADERS, Sources, is_python, module_name, read_reference, write
from scripts.sources.imports import LINE_LENGTH
from scripts.sources.symbols import split, words_of
from scripts.waiting import counted

tidied: dict[tuple[Path, str], str] = {}
"""What `tidy` has made of each file: of many states of the package, most files are alike."""


def render(solved: Collection[str], course: Course | None = None) -> Sources:
    """Sources of the package by their path within it.

    Args:
        solved: ids of the tasks that are solved, as `Task.id` writes them ("2.7.1").
        course: the map; that of the repository unless given.
    """
    return tidy(rendered(solved, course or load_course()))


def rendered(solved: Collection[str], course: Course) -> Sources:
    """The same, but with imports that nothing uses any more."""
    return {path: render_source(path, source, course, solved) for path, source in read_reference().items()}


@functools.cache
def starter_of(course: Course) -> Sources:
    """What `rendered` makes with nothing solved, made once; a terminal shows how far that is."""
    files = counted("reading the course", read_reference().items())
    return {path: render_source(path, source, course, ()) for path, source in files}


def render_source(path: Path, source: str, course: Course, solved: Collection[str]) -> str:
    """One source with a hole for each function of an unsolved task; the source itself without any."""
    return join(render_chunks(path, source, course, solved))


def render_chunks(path: Path, source: str, course: Course, solved: Collection[str]) -> Sequence[Chunk]:
    """The chunks of that."""
    owned = owned_functions(path, source, course)
    unsolved = {name: task for name, task in owned.items() if task.id not in solved}
    original = split(path, source)
    if not unsolved:
        return original
    dug = [
        with_hole(path, chunk, unsolved[chunk.names[0]])
        if chunk.kind == "function" and chunk.names[0] in unsolved
        else chunk
        for chunk in original
    ]
    if path.suffix in HEADERS:
        return dug  # what a header has is there for other files
    may_go = droppable(original, {name for name in owned if "." not in name})
    return drop_unused(dug, may_go)


def owned_functions(path: Path, source: str, course: Course) -> dict[str, Task]:
    """The task that asks for each function of a source, by its dotted name.

    One that a task names by itself is not its class's.

    Raises:
        KeyError: a task asks for a function that is not there.
    """
    module = module_name(path) + "."
    asked = sorted(
        (symbol.removeprefix(module), task)
        for day in course.days
        for task in day.tasks
        for symbol in task.symbols
        if symbol.startswith(module)
    )
    if not asked:
        return {}
    names = [chunk.names[0] for chunk in split(path, source) if chunk.kind == "function"]
    found: dict[str, Task] = {}
    for symbol, task in asked:  # a class sorts before its members
        owned = [name for name in names if name == symbol or name.startswith(f"{symbol}.")]
        if not owned:
            raise KeyError(f"{path} has no function {symbol}")
        found |= dict.fromkeys(owned, task)
    return found


def with_hole(path: Path, chunk: Chunk, task: Task) -> Chunk:
    """A function without its solution."""
    week, day, number = task.id.split(".")
    sentence = f'"week {week} day {day} task {number}: {chunk.names[0]} is not written yet"'
    line_end = "\r\n" if "\r\n" in chunk.text else "\n"
    if is_python(path):
        line = next((line for line in chunk.inside.splitlines() if line.strip()), chunk.text.splitlines()[-1])
        indent = line[: len(line) - len(line.lstrip())]
        hole = f"{indent}raise NotImplementedError({sentence})\n"
        if len(hole) > LINE_LENGTH + 1:
            hole = f"{indent}raise NotImplementedError(\n{indent}    {sentence}\n{indent})\n"
        dug = chunk.with_inside(hole.replace("\n", line_end))
    else:
        last_line = chunk.inside.rpartition("\n")[2] if "\n" in chunk.inside else chunk.text
        indent = re.match(r"[ \t]*", last_line)[0]  # type: ignore[index]
        dug = chunk.with_inside(f"{line_end}{indent}  NOT_WRITTEN_YET({sentence});{line_end}{indent}")
    return replace(dug, words=words_of(path, dug.text))


def tidy(sources: Mapping[Path, str]) -> Sources:
    """The sources; those in Python without the imports that nothing uses any more, in the house's format."""
    new = {path: text for path, text in sources.items() if is_python(path) and (path, text) not in tidied}
    if new:
        tidied.update(zip(new.items(), formatted(new), strict=True))
    return {path: tidied.get((path, text), text) for path, text in sources.items()}


def formatted(sources: Mapping[Path, str]) -> list[str]:
    """What ruff makes of these files."""
    faces = ["--per-file-ignores", "__init__.py:F401"]  # they import names for others to use
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--quiet", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(sources, root)
        for arguments in (["check", "--fix", "--select", "F401,TC005,I", *faces], ["format"]):
            subprocess.run([*ruff, *arguments, *options, folder], check=True)
        return [(root / path).read_text(encoding="utf-8") for path in sources]
