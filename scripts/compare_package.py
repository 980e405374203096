"""The learner's package, ready to be compared: named tiny_llm, its holes filled from the reference."""

import contextlib
import importlib
import io
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from scripts.compare_library import Library
from scripts.course import Course
from scripts.learn.learner import check_syntax, functions_of_tasks, read_package, shown
from scripts.sources.chunks import HOLE, is_defined, numbered
from scripts.sources.files import REFERENCE, Sources, Symbol, is_python, read_reference, write
from scripts.sources.patch import fill
from scripts.sources.python_source import is_private
from scripts.sources.symbols import holes_of, split

NAME = "tiny_llm"


@dataclass(frozen=True)
class Learner:
    """A package that runs whatever is not written yet, and what the learner has of it.

    Args:
        functions: path and dotted name of all that the course asks for.
        folder: where the learner's files are.
        sources: those files.
        filled: the same with the reference's solution in every hole.
        copy: the folder that `filled` was written to and is imported from.
    """

    course: Course
    functions: list[Symbol]
    folder: Path
    sources: Sources
    filled: Sources
    copy: Path

    def unwritten(self, symbol: str) -> list[str]:
        """The functions of a symbol that are holes or are not there; private ones are the learner's own.

        A method that course.toml names by itself is not its class's.
        """
        asked = {each for day in self.course.days for task in day.tasks for each in task.symbols}
        inner = tuple(f"{each}." for each in asked if each.startswith(f"{symbol}."))
        return [
            name
            for path, name in self.functions
            if dotted(path, name).startswith(f"{symbol}.") and not dotted(path, name).startswith(inner)
            if is_unwritten(self.sources.get(path, ""), path, name)
        ]

    def describe(self, error: BaseException) -> str:
        """An error in one sentence, with the learner's line that it came from."""
        try:
            words = " ".join(str(error).split()).replace(str(self.copy), shown(self.folder))
        except Exception:
            words = ""
        line = self.line_of(error)
        sentence = f"{type(error).__name__}: {words}" if words else type(error).__name__
        return f"{sentence} ({line})" if line else sentence

    def line_of(self, error: BaseException) -> str | None:
        """File and line of the innermost frame in code that the learner wrote."""
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            places.append((error.filename or "", error.lineno))
        for filename, number in reversed(places):
            if number is not None and Path(filename).is_relative_to(self.copy):
                path = Path(filename).relative_to(self.copy)
                if line := self.own_line(path, number):
                    return f"{shown(self.folder / path)}, line {line}"
        return None

    def own_line(self, path: Path, number: int) -> int | None:
        """The line of the learner's file that a line of the filled file was; None for what was filled in."""
        own = {
            chunk.names: (first, chunk) for first, chunk in numbered(split(path, self.sources.get(path, "")))
        }
        for first, chunk in numbered(split(path, self.filled[path])):
            if chunk.kind == "function" and 0 <= number - first < chunk.text.count("\n"):
                start, twin = own.get(chunk.names, (0, chunk))
                return number - first + start if start and not twin.is_hole else None
        lines, own_lines = (text.split("\n") for text in (self.filled[path], self.sources.get(path, "")))
        same = [i for i, line in enumerate(own_lines, start=1) if line == lines[number - 1]]
        return same[0] if len(same) == 1 else None


def dotted(path: Path, name: str) -> str:
    """The whole name of a function, with a dot at its end: so does the name of what it lies in begin it."""
    return ".".join([*path.with_suffix("").parts, name, ""])


def is_unwritten(source: str, path: Path, name: str) -> bool:
    """Whether a source lacks a function or has a hole for it."""
    if name in holes_of(path, source):
        return True
    if not is_python(path):
        return not source
    return not is_private(name.split(".")[-1]) and not is_defined(split(path, source), name)


@contextlib.contextmanager
def filled_package(folder: Path, course: Course) -> Iterator[tuple[Learner, Library]]:
    """The learner's package, whole, importable as tiny_llm within the block.

    Raises:
        ValueError: there is no such package, Python cannot read it, or it does not import.
    """
    sources = read_package(folder)
    check_syntax(sources, folder)
    every_task = {task.id for day in course.days for task in day.tasks}
    symbols = functions_of_tasks(course, every_task)
    # Modules and classes that the learner lacks come along: the course may have grown since they began.
    filled = fill({**read_reference(), **sources}, read_reference(), symbols)
    with tempfile.TemporaryDirectory() as parent:
        learner = Learner(course, symbols, folder, sources, filled, Path(parent).resolve() / NAME)
        # With what else there is: sources of native code, for one.
        shutil.copytree(folder, learner.copy, ignore=shutil.ignore_patterns("__pycache__"))
        write(filled, learner.copy)
        with importable(learner.copy.parent):
            yield learner, Library(import_package(learner))


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Drop what the learner's code prints: it would be printed at every repeat, into the table."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let tiny_llm be the package in a folder, and what it was before afterwards."""
    before = {name: module for name, module in sys.modules.items() if is_of_package(name)}
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if is_of_package(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def is_of_package(module: str) -> bool:
    """Whether a module is tiny_llm or in it."""
    return module == NAME or module.startswith(f"{NAME}.")


def import_package(learner: Learner) -> ModuleType:
    """The package, with the modules that are loaded of the reference; ValueError if it does not import."""
    modules = sorted(name for name in sys.modules if name.startswith(f"{REFERENCE.name}."))
    try:
        with silent():
            for name in modules:
                importlib.import_module(name.replace(REFERENCE.name, NAME, 1))
        return sys.modules[NAME]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a learner's module may raise anything, SystemExit too
        raise ValueError(f"{shown(learner.folder)} does not import: {learner.describe(error)}") from None


def is_hole(error: BaseException) -> bool:
    """Whether an error says that a function is not written yet."""
    return isinstance(error, NotImplementedError) and HOLE.search(str(error)) is not None
