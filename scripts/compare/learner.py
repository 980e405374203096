"""The learner's package, ready to be compared: named tiny_llm, its holes filled from the reference."""

import contextlib
import importlib
import io
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType

from scripts.compare.library import THE_REFERENCE, Library, loaded
from scripts.course import Course
from scripts.learn.learner import check_syntax, functions_of_tasks, read_package, shown
from scripts.packages import NAME, importable
from scripts.sources.chunks import is_defined
from scripts.sources.files import REFERENCE, Sources, Symbol, module_name, read_reference, write
from scripts.sources.patch import fill
from scripts.sources.render import starter_of
from scripts.sources.symbols import holes_of, split


@dataclass(frozen=True)
class Learner:
    """A package that runs whatever is not written yet, and what the learner has of it.

    Args:
        symbols: the symbol of course.toml that asks for each function.
        folder: where the learner's files are.
        sources: those files.
        filled: the same with the reference's solution in every hole.
        copy: the folder that `filled` was written to and is imported from.
    """

    symbols: Mapping[Symbol, str]
    folder: Path
    sources: Sources
    filled: Sources
    copy: Path

    def unwritten(self, symbol: str) -> list[str]:
        """The functions of a symbol that are holes or are not there."""
        return [
            name
            for (path, name), asked in self.symbols.items()
            if asked == symbol and is_unwritten(path, self.sources.get(path, ""), name)
        ]

    def describe(self, error: BaseException) -> str:
        """An error in one sentence, with the learner's line that it came from."""
        try:
            words = " ".join(str(error).split()).replace(str(self.copy), shown(self.folder))
        except Exception:
            words = ""
        line = self.line_of(error)
        return type(error).__name__ + (f": {words}" if words else "") + (f" ({line})" if line else "")

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
        filled, own = (sources.get(path, "").split("\n") for sources in (self.filled, self.sources))
        blocks = SequenceMatcher(None, filled, own, autojunk=False).get_matching_blocks()
        return next((b + number - a for a, b, size in blocks if a < number <= a + size), None)


def is_unwritten(path: Path, source: str, name: str) -> bool:
    """Whether a source lacks a function or has a hole for it."""
    return not is_defined(split(path, source), name) or name in holes_of(path, source)


def symbols_by_function(starter: Sources, course: Course) -> dict[Symbol, str]:
    """The symbol that asks for each function; a method that is asked for by itself is not its class's."""
    tasks = [task for day in course.days for task in day.tasks]
    symbols = sorted((symbol for task in tasks for symbol in task.symbols), key=len, reverse=True)
    return {
        (path, name): next(each for each in symbols if function.startswith(f"{each}."))
        for path, name in functions_of_tasks(starter, course, {task.id for task in tasks})
        for function in [f"{module_name(path)}.{name}."]
    }


@contextlib.contextmanager
def filled_package(folder: Path, course: Course) -> Iterator[tuple[Learner, Library]]:
    """The learner's package, whole, importable as tiny_llm within the block.

    Raises:
        ValueError: there is no such package, Python cannot read it, or it does not import.
    """
    sources = read_package(folder)
    check_syntax(sources, folder)
    starter = starter_of(course)
    symbols = symbols_by_function(starter, course)
    # Modules and classes that the learner lacks come along: the course may have grown since they began.
    reference = read_reference()
    filled = fill({**reference, **sources}, starter, reference, symbols)
    with tempfile.TemporaryDirectory() as parent:
        learner = Learner(symbols, folder, sources, filled, Path(parent).resolve() / NAME)
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


def import_package(learner: Learner) -> ModuleType:
    """The package, with the modules that are loaded of the reference; ValueError if it does not import."""
    modules = {**loaded(f"{REFERENCE.name}."), **THE_REFERENCE.accelerated}
    try:
        with silent():
            for name in sorted(modules):
                importlib.import_module(name.replace(REFERENCE.name, NAME, 1))
        return sys.modules[NAME]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a learner's module may raise anything, SystemExit too
        raise ValueError(f"{shown(learner.folder)} does not import: {learner.describe(error)}") from None
