"""Sources by symbol: of the reference, of the starter and of the tests, as chapters include them."""

import ast
import functools
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from scripts import source_lines
from scripts.book.problems import ChapterError
from scripts.c_source import Chunk, mask, split
from scripts.course import ROOT, Course, Day, Task, load_course
from scripts.languages import source_of
from scripts.render import (
    REFERENCE,
    SHARED,
    is_python,
    module_name,
    owned_functions,
    parse,
    read_reference,
    render_module,
    source_files,
)

LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".metal": "cpp", ".cu": "cpp"}
HOLE_LINE = re.compile(r"^( *)raise NotImplementedError\(\"week .*\)\n?", re.M)


@dataclass(frozen=True)
class Symbol:
    """Something that a source of the package defines; `path` is within the package."""

    path: Path
    name: str

    @property
    def dotted(self) -> str:
        """As course/course.toml writes it."""
        return f"{module_name(self.path)}.{self.name}"

    @property
    def language(self) -> str:
        """What its fence is marked with."""
        return LANGUAGES[self.path.suffix]


@functools.cache
def all_tasks() -> tuple[tuple[Day, Task], ...]:
    """Every task with its day."""
    course: Course = load_course()
    return tuple((day, task) for day in course.days for task in day.tasks)


@functools.cache
def reference() -> dict[Path, str]:
    """The sources of the reference."""
    return read_reference()


@functools.cache
def all_sources() -> dict[Path, str]:
    """The sources of the reference, and those that both packages share."""
    shared = {path.relative_to(SHARED): path.read_text(encoding="utf-8") for path in source_files(SHARED)}
    return {**shared, **reference()}


@functools.cache
def starter_source(path: Path) -> str:
    """A source as the starter has it, imports aside."""
    return render_module(reference()[path], path, all_tasks(), ())


@functools.cache
def source_before(path: Path, day: Day) -> str:
    """A source as it is when all tasks of the earlier days are solved."""
    solved = {task.id for each, task in all_tasks() if (each.week, each.day) < (day.week, day.day)}
    return render_module(reference()[path], path, all_tasks(), solved)


@functools.cache
def owned(path: Path) -> dict[str, tuple[Day, Task]]:
    """The task that asks for each function of a source."""
    return owned_functions(reference()[path], path, all_tasks())


def find_symbol(dotted: str) -> Symbol:
    """The symbol of that name; one that a module only imports is found where it is defined.

    Raises:
        ChapterError: the package has none.
    """
    try:
        path, name = source_of(dotted, REFERENCE)
    except KeyError:
        raise ChapterError(f"the package has no {dotted}: write it as module.symbol") from None
    source = reference()[path]
    if is_python(path) and (module := imported_from(source, name.split(".")[0])):
        return find_symbol(f"{module}.{name}")
    if not is_defined(path, source, name):
        raise ChapterError(f"{path} of the package has no {name}")
    return Symbol(path, name)


def is_defined(path: Path, source: str, name: str) -> bool:
    """Whether a source defines a name."""
    if not is_python(path):
        return any(name in chunk.names for chunk in split(source))
    return source_lines.is_bound(source, name)


def imported_from(source: str, name: str) -> str | None:
    """The module of the package that a source imports a name from, if it does."""
    for node in parse(source).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            module = node.module or ""
            if node.level or module.startswith("tiny_llm"):
                return module.removeprefix("tiny_llm_ref").removeprefix("tiny_llm").strip(".")
    return None


def reference_text(symbol: Symbol, day: Day | None) -> str:
    """Its source in the reference.

    Raises:
        ChapterError: this day or a later one asks for it, so it would be a solution.
    """
    for name, (asking_day, task) in owned(symbol.path).items():
        is_part = name == symbol.name or name.startswith(f"{symbol.name}.")
        if is_part and day is not None and (asking_day.week, asking_day.day) >= (day.week, day.day):
            raise ChapterError(
                f"{symbol.dotted} holds what week {asking_day.week} day {asking_day.day} task {task.number} "
                "asks for: show {{#starter}} of it"
            )
    if day is not None and not is_defined(symbol.path, source_before(symbol.path, day), symbol.name):
        raise ChapterError(f"only the solution of this day or a later one uses {symbol.dotted}")
    return text_of(symbol, reference()[symbol.path])


def starter_text(symbol: Symbol) -> str:
    """Its source in the starter, without the lines that say what is not written yet."""
    source = starter_source(symbol.path)
    if not is_defined(symbol.path, source, symbol.name):
        raise ChapterError(f"the starter has no {symbol.dotted}: only the solution uses it")
    text = text_of(symbol, source)
    return without_holes(text) if is_python(symbol.path) else text


def without_holes(text: str) -> str:
    """Python functions with their docstring as the whole body, or dots where there is none."""
    lines = HOLE_LINE.sub(lambda match: f"{match[1]}...\n", text)
    return re.sub(r'("""\n) *\.\.\.\n', r"\1", lines).rstrip("\n")


def text_of(symbol: Symbol, source: str) -> str:
    """The lines of a definition, unindented."""
    if is_python(symbol.path):
        first, last = source_lines.item_range(source, symbol.name)
        return textwrap.dedent(source_lines.slice_lines(source, first, last)).rstrip("\n")
    return "\n".join(chunk.text.strip("\n") for chunk in split(source) if symbol.name in chunk.names)


def test_text(dotted: str) -> tuple[Path, str]:
    """The file of a test and its source: `week_2_day_7.test_task_2_x` is in that day's file."""
    module, _, name = dotted.partition(".")
    file = ROOT / "tests" / "days" / f"test_{module}.py"
    if not file.is_file():
        raise ChapterError(f"there is no tests/test_{module}.py")
    source = file.read_text(encoding="utf-8")
    if not name or not source_lines.is_bound(source, name):
        raise ChapterError(f"tests/test_{module}.py has no {name or 'test without a name'}")
    return file, text_of(Symbol(Path(file.name), name), source)


def signature(symbol: Symbol) -> str:
    """The first lines of a function."""
    source = reference()[symbol.path]
    if is_python(symbol.path):
        return python_signature(source, symbol.name)
    return "\n".join(c_signature(chunk) for chunk in split(source) if symbol.name in chunk.names)


def python_signature(source: str, name: str) -> str:
    """`def f(x: int) -> int: ...`, in as many lines as the source has it."""
    function = source_lines.functions(parse(source))[name]
    first = source_lines.start_of(function)
    text = source_lines.slice_lines(source, first, function.body[0].lineno - 1)
    return textwrap.dedent(text).rstrip() + " ..."


def c_signature(chunk: Chunk) -> str:
    """A function up to its brace, without the comment above it."""
    head = chunk.text[: chunk.body[0] - 1] if chunk.body else chunk.text
    code = mask(chunk.text)
    return head[len(code) - len(code.lstrip()) :].strip() + ";"
