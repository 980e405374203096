"""Sources by symbol: of the reference, of the starter and of the tests, as chapters include them."""

import functools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.book.problems import ChapterError
from scripts.course import ROOT, Course, Day, Task, load_course
from scripts.sources import files, symbols
from scripts.sources.c_source import mask
from scripts.sources.chunks import Chunk, join
from scripts.sources.files import SHARED, is_python, module_name, read_reference, source_files
from scripts.sources.render import owned_functions, render_chunks, render_source
from scripts.sources.symbols import split

LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".metal": "cpp", ".cu": "cpp", ".cuh": "cpp"}
HOLE_LINE = re.compile(r"^( *)raise NotImplementedError\(\s*\"week .*\"\s*\)\n?", re.M)


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
def course() -> Course:
    """The map."""
    return load_course()


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
def starter_chunks(path: Path) -> Sequence[Chunk]:
    """A source as the starter has it, imports aside."""
    return render_chunks(path, reference()[path], course(), ())


def is_in_starter(path: Path, name: str) -> bool:
    """Whether the starter's source defines a name."""
    return any(name in chunk.names for chunk in starter_chunks(path))


@functools.cache
def source_before(path: Path, day: Day) -> str:
    """A source as it is when all tasks of the earlier days are solved."""
    earlier = [each for each in course().days if (each.week, each.day) < (day.week, day.day)]
    solved = {task.id for each in earlier for task in each.tasks}
    return render_source(path, reference()[path], course(), solved)


@functools.cache
def owned(path: Path) -> dict[str, Task]:
    """The task that asks for each function of a source."""
    return owned_functions(path, reference()[path], course())


def find_symbol(dotted: str) -> Symbol:
    """The symbol of that name; one that a module only imports is found where it is defined.

    Raises:
        ChapterError: the package has none.
    """
    try:
        path, name = files.find_symbol(dotted)
    except KeyError:
        raise ChapterError(f"the package has no {dotted}: write it as module.symbol") from None
    source = reference()[path]
    if is_python(path) and (module := imported_from(path, source, name.split(".")[0])):
        return find_symbol(f"{module}.{name}")
    if not is_defined(path, source, name):
        raise ChapterError(f"{path} of the package has no {name}")
    return Symbol(path, name)


def is_defined(path: Path, source: str, name: str) -> bool:
    """Whether a source defines a name."""
    return any(name in chunk.names for chunk in split(path, source))


def imported_from(path: Path, source: str, name: str) -> str | None:
    """The module of the package that a source imports a name from, if it does."""
    labels = [chunk.label for chunk in split(path, source) if chunk.kind == "import" and name in chunk.names]
    match = re.match(r"from (?:(\.+)|tiny_llm(?:_ref)?\.)([\w.]*) import", labels[0]) if labels else None
    if match is None:
        return None
    folder = path.parts[: -len(match[1])] if match[1] else ()
    return ".".join([*folder, *filter(None, [match[2]])])


def reference_text(symbol: Symbol, day: Day | None) -> str:
    """Its source in the reference.

    Raises:
        ChapterError: this day or a later one asks for it, so it would be a solution.
    """
    for name, task in owned(symbol.path).items():
        is_part = name == symbol.name or name.startswith(f"{symbol.name}.")
        week, number, _ = map(int, task.id.split("."))
        if is_part and day is not None and (week, number) >= (day.week, day.day):
            raise ChapterError(
                f"{symbol.dotted} holds what week {week} day {number} task {task.number} "
                "asks for: show {{#starter}} of it"
            )
    if day is not None and not is_defined(symbol.path, source_before(symbol.path, day), symbol.name):
        raise ChapterError(f"only the solution of this day or a later one uses {symbol.dotted}")
    return text_of(symbol, reference()[symbol.path])


def starter_text(symbol: Symbol) -> str:
    """Its source in the starter, without the lines that say what is not written yet."""
    if not is_in_starter(symbol.path, symbol.name):
        raise ChapterError(f"the starter has no {symbol.dotted}: only the solution uses it")
    text = text_of(symbol, join(starter_chunks(symbol.path)))
    return without_holes(text) if is_python(symbol.path) else text


def without_holes(text: str) -> str:
    """Python functions with their docstring as the whole body, or dots where there is none."""
    lines = HOLE_LINE.sub(lambda match: f"{match[1]}...\n", text)
    return re.sub(r'("""\n) *\.\.\.\n', r"\1", lines).rstrip("\n")


def text_of(symbol: Symbol, source: str) -> str:
    """The lines of a definition, unindented."""
    return textwrap.dedent(symbols.definition_of(symbol.path, source, symbol.name)).strip("\n")


def test_text(dotted: str) -> tuple[Path, str]:
    """The file of a test and its source: `week_2_day_7.test_task_2_x` is in that day's file."""
    module, _, name = dotted.partition(".")
    file = ROOT / "tests" / "days" / f"test_{module}.py"
    if not file.is_file():
        raise ChapterError(f"there is no tests/days/test_{module}.py")
    source = file.read_text(encoding="utf-8")
    if not name or not is_defined(file, source, name):
        raise ChapterError(f"tests/days/test_{module}.py has no {name or 'test without a name'}")
    return file, text_of(Symbol(Path(file.name), name), source)


def signature(symbol: Symbol) -> str:
    """A function up to its docstring or brace, without the comment above it."""
    chunks = [chunk for chunk in split(symbol.path, reference()[symbol.path]) if symbol.name in chunk.names]
    return "\n".join((python_signature if is_python(symbol.path) else c_signature)(chunk) for chunk in chunks)


def python_signature(chunk: Chunk) -> str:
    """`def f(x: int) -> int: ...`, in as many lines as the source has it."""
    head = re.sub(r"\A(\s*#.*\n)+", "", chunk.text[: (chunk.body or (0,))[0]]).partition('"""')[0]
    return textwrap.dedent(head).rstrip() + " ..."


def c_signature(chunk: Chunk) -> str:
    """A function up to its brace, without the comment above it."""
    head = chunk.text[: chunk.body[0] - 1] if chunk.body else chunk.text
    code = mask(chunk.text)
    return head[len(code) - len(code.lstrip()) :].strip() + ";"
