"""What a learner reads when a test of a day fails: what went wrong and where, without any traceback.

A pytest plugin. It writes the reports of the day tests anew and shows those of the first unsolved task
alone, unless --all is given. Other tests keep pytest's own reports, and so do all with an explicit --tb.
"""

import ast
import dis
import importlib.util
import inspect
import linecache
import re
import textwrap
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from scripts.course import ROOT, Day, Task, load_course
from scripts.learn.crashes import Crash
from scripts.sources.c_source import line_of_function
from scripts.sources.chunks import HOLE
from scripts.sources.files import find_symbol, is_python
from tests.support.calls import tree_of

MAX_LINES = 15
MAX_COLUMNS = 110
MAX_PRINTED = 3
MAX_FAILURES = 3
MAX_OWN_LINES = 2
MAX_DEFINITIONS = 3
NOT_WRITTEN = "is not written yet"
KERNEL = re.compile(r"\b(\w+\.(?:cpp|metal|cu))(?::(\d+)|.* in line (\d+))?")
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
        if self.is_from_a_check:
            text = text.split("\nassert ")[0]
        elif not self.is_hole and not self.is_of_a_kernel:
            text = f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__
        return "\n".join([text, *self._example()])

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
    return " ".join(" ".join(lines).split()).replace("( ", "(").replace(" )", ")").replace(",)", ")")


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


def definitions(where: Where, test: Any, line: int | None) -> tuple[list[Place], list[Place]]:
    """Where the learner wrote what a test calls at a line, or else anywhere; and all that this calls.

    Where it is one function that calls one other, the first are both. What no test names is called by what
    it does name: kernels, and parts of a larger whole. Nothing if that is not clear.
    """
    task = in_course(where)
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    function = getattr(inner, "__func__", inner)
    if not isinstance(task, Task) or not isinstance(function, FunctionType):
        return [], []
    all_places = [place for symbol in task.symbols if (place := definition(symbol))]
    if len(all_places) == 1 or not any(is_python(place.file) for place in all_places):
        return all_places[:MAX_DEFINITIONS], all_places  # no test names a function in a kernel
    known = function.__globals__
    of_line, of_test = names_at(function, line) if line else set(), names_in(function.__code__)
    direct = names_reached(of_test, known, with_helpers=False)
    for reached in (
        names_reached(of_line, known, with_helpers=False),
        names_reached(of_line, known, with_helpers=True),
        direct | names_reached(of_test, known, with_helpers=True),
    ):
        named = [symbol for symbol in task.symbols if spoken_name(symbol) in reached]
        named.sort(key=lambda symbol: spoken_name(symbol) not in direct)
        places = [place for symbol in named if (place := definition(symbol))]
        if places:
            called = [symbol for each in named for symbol in called_by(each, task) if symbol not in named]
            if len(named) == len(called) == 1:
                places += [place for symbol in called if (place := definition(symbol))]
            for symbol in (suspects := [*named]):
                suspects += [each for each in called_by(symbol, task) if each not in suspects]
            return places[:MAX_DEFINITIONS], [place for each in suspects if (place := definition(each))]
    unnamed = [place for place in all_places if not is_python(place.file)] or all_places
    return (unnamed if len(unnamed) <= MAX_DEFINITIONS else []), unnamed


def called_by(symbol: str, task: Task) -> list[str]:
    """The symbols of a task that one of them names."""
    place = definition(symbol)
    node = statement_at(place.file, place.line) if place and is_python(place.file) else None
    nodes = [*ast.walk(node or ast.Pass())]
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in nodes}
    return [other for other in task.symbols if other != symbol and spoken_name(other) in names]


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


def spoken_name(symbol: str) -> str:
    """What a test writes to use a symbol: for `RoPE.__call__` it is RoPE."""
    parts = symbol.split(".")
    return parts[-2] if parts[-1].startswith("__") else parts[-1]


def names_at(function: FunctionType, line: int) -> set[str]:
    """Names in the statement at a line of a function, those after a point with it."""
    nodes = [*ast.walk(statement_at(Path(function.__code__.co_filename), line) or ast.Pass())]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute)}


@cache
def names_in(code: CodeType) -> set[str]:
    """Names that a function and the functions within it use from elsewhere, those after a point with it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    names = {
        f"{'' if instruction.opname == 'LOAD_GLOBAL' else '.'}{instruction.argval}"
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")
    }
    return names.union(*inner)


def names_reached(names: set[str], known: Mapping[str, Any], with_helpers: bool) -> set[str]:
    """Names of the package among these and, if asked for, in the tests' own functions that they mean."""
    reached: set[str] = set()
    seen: set[CodeType] = set()
    waiting = [(names, known)]
    while waiting:
        names, known = waiting.pop()
        reached |= {name.lstrip(".") for name in names if name not in known}
        meant = [known[name] for name in names if name in known and is_of_the_package(known[name])]
        reached |= {getattr(value, "__name__", "") for value in meant}
        helpers = [helper for name in names if with_helpers for helper in functions_of(known.get(name))]
        new = [helper for helper in helpers if helper.__code__ not in seen and is_of_the_tests(helper)]
        seen |= {helper.__code__ for helper in new}
        waiting += [(names_in(helper.__code__), helper.__globals__) for helper in new]
    return reached


def functions_of(helper: object) -> list[FunctionType]:
    """A function without its decorators, or the methods of a class."""
    members = vars(helper).values() if isinstance(helper, type) else [helper]
    return [inspect.unwrap(member) for member in members if isinstance(member, FunctionType)]


def is_of_the_tests(function: FunctionType) -> bool:
    """Whether a function is written in the folder of the tests."""
    return ROOT / "tests" in Path(function.__code__.co_filename).parents


def is_of_the_package(value: object) -> bool:
    """Whether something was defined in the package under test."""
    return str(getattr(value, "__module__", "")).startswith("tiny_llm")


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


class FailureReporter:
    """The plugin."""

    def __init__(self, shows_all: bool) -> None:
        self.shows_all = shows_all
        self.failures: list[Failure] = []
        self.reports: set[str] = set()
        self.has_other_tests = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note whether there is anything but day tests."""
        self.has_other_tests = any(Where.of(item.nodeid) is None for item in session.items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Ask pytest, and hypothesis with it, for no quotation of a failure: to make one takes long."""
        if Where.of(item.nodeid):
            item.repr_failure = lambda excinfo: ""  # type: ignore[assignment, method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell a failure of a day test anew."""
        where = Where.of(item.nodeid)
        report = yield
        if report.failed and where and call.excinfo:
            failure = tell(
                call.excinfo.value, where, item.name, item.path, getattr(item, "obj", None), report.capstdout
            )
            self._take(report, failure)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Tell anew why the tests of a day cannot be read: nearly always an error of the learner's module."""
        report = yield
        where = Where.of(collector.nodeid)
        call = getattr(report, "call", None)
        if report.failed and where and call:
            error = call.excinfo.value
            self._take(report, tell(error.__cause__ or error, where, collector.name, collector.path))
        return report

    def _take(self, report: pytest.TestReport | pytest.CollectReport, failure: Failure) -> None:
        report.longrepr = str(failure)
        self.failures.append(failure)
        self.reports.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Write the failures of the day tests, then let pytest write the others."""
        stats = terminalreporter.stats
        if not self.has_other_tests:
            stats.pop("warnings", None)
        if self.failures:
            self._write(terminalreporter)
        hidden = {key: stats[key] for key in ("failed", "error") if key in stats}
        for key, reports in hidden.items():
            stats[key] = [report for report in reports if report.nodeid not in self.reports]
        try:
            return (yield)
        finally:
            stats.update(hidden)

    def _write(self, terminal: Any) -> None:
        in_order = sorted(self.failures, key=lambda failure: failure.where)
        tasks = [[*of_task] for _, of_task in groupby(in_order, key=lambda failure: failure.where)]
        failures = [failure for of_task in tasks for failure in narrowed(of_task)]
        terminal.section("FAILURES", "=")
        if not self.shows_all and is_untouched(failures):
            title, *rest = untouched_lines(failures)
            terminal.write_line(title, bold=True)
            for line in rest:
                terminal.write_line(line)
            return
        shown = failures if self.shows_all else first_failures(failures)
        for failure in shown:
            title, *rest = failure.lines()
            terminal.write_line(title, bold=True)
            terminal.write_line(rest[0], red=True)
            for line in rest[1:]:
                terminal.write_line(line)
            terminal.write_line("")
        for sentence in what_is_left(failures, shown):
            terminal.write_line(sentence)


def is_untouched(failures: Sequence[Failure]) -> bool:
    """Whether the first task that fails does so at holes alone."""
    return all(failure.is_hole for failure in failures if failure.where == failures[0].where)


def untouched_lines(failures: Sequence[Failure]) -> list[str]:
    """The first task that fails, what of it is not written yet, one a line, and what comes after it."""
    of_first = [failure for failure in failures if failure.where == failures[0].where]
    places: dict[str, Place] = {}
    for failure in of_first:
        places.setdefault(failure.message.removeprefix(f"{failure.where}: "), failure.places[-1])
    lines = [f"{name}: {relative(place.file)}:{place.line}" for name, place in places.items()]
    return [failures[0].where.heading, *lines, *what_is_left(failures, of_first)]


def first_failures(failures: Sequence[Failure]) -> list[Failure]:
    """Of the first task that fails, three failures that say different things: one a test function first."""
    chosen: dict[object, Failure] = {}
    for failure in failures:
        if failure.where == failures[0].where:
            chosen.setdefault(failure.key, failure)
    turns: Counter[str] = Counter()
    turn_of = {}
    for key, failure in chosen.items():
        turn_of[key] = turns[failure.function]
        turns[failure.function] += 1
    return [chosen[key] for key in sorted(chosen, key=turn_of.__getitem__)[:MAX_FAILURES]]


def what_is_left(failures: Sequence[Failure], shown: Sequence[Failure]) -> list[str]:
    """Sentences on the failures that are not shown."""
    first = failures[0].where
    of_first = sum(failure.where == first for failure in failures)
    later_tasks = {failure.where for failure in failures} - {failure.where for failure in shown}
    sentences = []
    if len(shown) < of_first:
        sentences.append(f"and {count(of_first - len(shown), 'more test')} of this task (--all shows them)")
    if later_tasks:
        fails = "fails" if len(later_tasks) == 1 else "fail"
        sentences.append(f"{count(len(later_tasks), 'later task')} {fails} too: --all shows every failure")
    return sentences


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
