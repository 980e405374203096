"""One failure in the words of its report: what went wrong and where, without any traceback."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from scripts.course import ROOT, Task
from scripts.learn.crashes import Crash
from scripts.sources.c_source import line_of_function
from scripts.sources.chunks import HOLE
from scripts.sources.files import is_python
from tests.support.calls import call_in_block
from tests.support.definitions import MAX_DEFINITIONS, definitions
from tests.support.places import (
    Place,
    Where,
    definition,
    in_course,
    is_learners,
    package_folder,
    place_at,
    place_of,
)

MAX_LINES = 15
MAX_COLUMNS = 110
MAX_PRINTED = 3
MAX_OWN_LINES = 2
NOT_WRITTEN = "is not written yet"
NOT_RAISED = "DID NOT RAISE"
MISFITS = (LookupError, TypeError, AttributeError, ValueError)
"""What Python raises where a thing has another form than the line needs."""
KERNEL = re.compile(r"\b(\w+\.(?:cpp|metal|cuh?|h))(?::(\d+)|.* in line (\d+))?")


@dataclass(frozen=True)
class Failure:
    """One test that failed, or a file that could not be read: how it is told."""

    where: Where
    name: str
    message: str
    places: tuple[Place, ...]
    printed: str = ""
    is_error: bool = False
    suspects: tuple[Place, ...] = ()

    @property
    def key(self) -> object:
        """What two failures have in common when the second says nothing new."""
        return self.places[0] if self.is_error else self.message

    @property
    def is_hole(self) -> bool:
        """Whether all that is wrong is that something is not written yet."""
        return HOLE.fullmatch(self.message) is not None and bool(self.places)

    @property
    def function(self) -> str:
        """The test without the case."""
        return self.name.partition("[")[0]

    def lines(self) -> list[str]:
        """At most 15 lines of at most 110 columns."""
        places = [line for place in self.places for line in place.lines()]
        printed = [f"  printed: {line}" for line in self.printed.splitlines()[-MAX_PRINTED:]]
        room = MAX_LINES - 2 - len(places) - len(printed)
        message = cut_lines(wrap(self.message), room)
        return [cut(line) for line in [self.where.heading, self.name, *message, *places, *printed]]

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class Told:
    """An exception of a test, read for what a learner should know of it."""

    error: BaseException
    test_file: Path
    test_name: str

    @cached_property
    def frames(self) -> Sequence[Any]:
        """From the test down to where the exception was raised."""
        return pytest.ExceptionInfo.from_exception(self.error).traceback

    @property
    def is_hole(self) -> bool:
        """Whether something is not written yet."""
        return isinstance(self.error, NotImplementedError) and NOT_WRITTEN in str(self.error)

    @property
    def is_from_a_check(self) -> bool:
        """Whether the test itself found fault, and not Python or MLX with the learner's code."""
        if isinstance(self.error, AssertionError):
            return not self.frames or ROOT / "tests" in Path(self.frames[-1].path).parents
        return isinstance(self.error, pytest.fail.Exception)

    @property
    def is_of_a_kernel(self) -> bool:
        """Whether compiler or emulator found fault with a kernel, in a sentence that names its file."""
        return type(self.error).__module__.startswith("kernel_runtime.")

    @property
    def message(self) -> str:
        """What is said first."""
        text = str(self.error)
        if text.startswith(NOT_RAISED):
            text = self._not_raised(text)
        elif self.is_from_a_check:
            text = text.split("\nassert ")[0]
        elif not self.is_hole and not self.is_of_a_kernel:
            text = f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__
        return "\n".join([text, *self._in_helper(), *self._example()])

    @property
    def test_places(self) -> list[Place]:
        """The line of the test function, which hypothesis may stand around."""
        name, file = self.test_name, self.test_file
        frames = [frame for frame in self.frames if frame.name == name and Path(frame.path) == file]
        return [place_of(frame) for frame in frames[-1:]]

    @property
    def learner_places(self) -> list[Place]:
        """The innermost line of the learner's package, and the line of theirs that called it."""
        if isinstance(self.error, SyntaxError) and self.error.filename:
            source = " ".join((self.error.text or "").split())
            return [Place(Path(self.error.filename), self.error.lineno or 0, source)]
        if self.is_of_a_kernel and (place := place_in_kernel(str(self.error))):
            return [place]
        return [place_of(frame) for frame in self.learner_frames[: -MAX_OWN_LINES - 1 : -1]]

    @property
    def learner_frames(self) -> list[Any]:
        """Those in the learner's package."""
        return [frame for frame in self._frames_of_cause() if is_learners(Path(frame.path))]

    def _frames_of_cause(self) -> Sequence[Any]:
        """The frames of the exception that a check speaks of, else of the one that the test ended with."""
        cause = self.error.__cause__ if isinstance(self.error, pytest.fail.Exception) else None
        return pytest.ExceptionInfo.from_exception(cause).traceback if cause else self.frames

    def _not_raised(self, text: str) -> str:
        """What `pytest.raises` finds missing, with the call that should have raised it."""
        frame = next(frame for frame in self.frames[::-1] if Path(frame.path) == self.test_file)
        call = call_in_block(frame.frame.raw, frame.lineno + 1) or ""
        kind = re.findall(r"\w+", text)[-1]
        said = f"expected {kind} to reach the caller, nothing was raised"
        return f"{call}: {said}" if "(" in call else said

    def _in_helper(self) -> list[str]:
        """The line of a test's helper that could not do with what came from the learner's code."""
        helpers = [frame for frame in self.frames if ROOT / "tests" in Path(frame.path).parents]
        is_told = self.is_from_a_check or self.learner_frames or not isinstance(self.error, MISFITS)
        if is_told or not helpers or helpers[-1].name == self.test_name:
            return []
        return [
            f"What your code returned doesn't fit what the test does with it: {place_of(helpers[-1]).source}"
        ]

    def _example(self) -> list[str]:
        """The arguments with which hypothesis made the test fail."""
        for note in getattr(self.error, "__notes__", []):
            found = re.match(
                r"(?:Falsifying example|Failing test case): \w+\((.*?),?\s*\)(\n|$)", note, flags=re.DOTALL
            )
            if found:
                arguments = re.sub(r"\s*#[^\n]*", "", found[1])
                return [f"with {' '.join(arguments.split())}"]
        return []


def tell(
    error: BaseException, where: Where, name: str, test_file: Path, test: Any = None, printed: str = ""
) -> Failure:
    """What to say of an exception that a test ended with."""
    while getattr(error, "exceptions", None):  # hypothesis groups different failures of one test
        error = error.exceptions[0]  # type: ignore[attr-defined]
    if crash := getattr(error, "crash", None):
        return Failure(where, name, crash.sentence, tuple(places_of_crash(crash, test_file)))
    told = Told(error, test_file, getattr(test, "__name__", ""))
    if told.is_hole and (frames := told.learner_frames):  # which is quick: in a starter every test is here
        place = hole_in_kernel(told.message) or Place(Path(frames[-1].path), frames[-1].lineno + 1)
        return Failure(where, name, told.message, (place,), printed)
    own = told.learner_places
    test_places = told.test_places
    line = test_places[-1].line if test_places else None
    named, suspects = ([], []) if own else definitions(where, test, line)
    places = (*own, *named, *test_places)
    return Failure(where, name, told.message, places, printed, bool(own), tuple(suspects))


def places_of_crash(crash: Crash, test_file: Path) -> list[Place]:
    """The kernel that crashed, or else the learner's innermost line, and the line of the test."""
    frames = [(Path(file), line) for file, line in crash.frames]
    own = [place_at(file, line) for file, line in frames if is_learners(file)]
    of_test = [place_at(file, line) for file, line in frames if file == test_file]
    kernels = (place_in_kernel(file.name, crash.kernel) for file in package_folder().rglob("*.cpp"))
    kernel = next((place for place in kernels if crash.kernel and place and place.line > 1), None)
    return [*([kernel] if kernel else own[:1]), *of_test[-1:]]


def narrowed(failures: Sequence[Failure]) -> list[Failure]:
    """The failures of a task, without the functions that cannot explain all of them if others can."""
    suspects = [failure.suspects for failure in failures if failure.suspects]
    shown = {place for failure in failures for place in failure.places}
    common = [place for place in suspects[0] if place in shown] if suspects else []
    common = [place for place in common if all(place in each for each in suspects)]
    if not 0 < len(common) <= MAX_DEFINITIONS:
        return [*failures]
    rest = [[place for place in failure.places if place not in failure.suspects] for failure in failures]
    return [
        replace(failure, places=(*common, *places)) if failure.suspects else failure
        for failure, places in zip(failures, rest, strict=True)
    ]


def place_in_kernel(message: str, function: str = "") -> Place | None:
    """The line of a kernel that an error names, or else where its function, named as its file, begins."""
    match = KERNEL.search(message)
    file = next(package_folder().rglob(match[1]), None) if match else None
    if not match or not file:
        return None
    source = file.read_text(encoding="utf-8", errors="replace")
    line = int(match[2] or match[3] or 0) or line_of_function(source, function or file.stem) or 1
    lines = source.splitlines()
    return Place(file, line, lines[line - 1].strip() if line <= len(lines) else "")


def hole_in_kernel(message: str) -> Place | None:
    """The function that is not written yet, if it is not one in Python, whose call says where it is."""
    match = HOLE.search(message)
    task = in_course(Where(*map(int, match.groups()[:3]))) if match else None
    symbols = task.symbols if match and isinstance(task, Task) else ()
    found = [definition(symbol) for symbol in symbols if match and symbol.endswith(f".{match[4]}")]
    place = next((place for place in found if place and not is_python(place.file)), None)
    return Place(place.file, place.line) if place else None


def wrap(text: str) -> list[str]:
    """Lines that fit."""
    return [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, MAX_COLUMNS, subsequent_indent="  ") or [""]
    ]


def cut_lines(lines: list[str], room: int) -> list[str]:
    """Some lines without their middle."""
    if len(lines) <= room:
        return lines
    last = (room - 1) // 2
    return [*lines[: room - 1 - last], "...", *lines[len(lines) - last :]]


def cut(line: str) -> str:
    """A line without its middle."""
    if len(line) <= MAX_COLUMNS:
        return line
    half = (MAX_COLUMNS - 5) // 2
    return f"{line[:half]} ... {line[len(line) - half :]}"
