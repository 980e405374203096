"""A Python source cut into chunks of whole lines, by its syntax tree; what is not changed keeps its bytes."""

import ast
import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.sources.chunks import GAP, Chunk
from scripts.sources.imports import Import, aliases, origin

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*\n)+(?=[ \t]*\r?\n)")
NO_CODE = re.compile(r"\s*(?:#.*)?\s*")
IN_PROSE = re.compile(r"\b(?:_\w+|[A-Z][A-Z\d_]+)\b")
"""What no word of a docstring is written like: a private name, or a constant's."""
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
Block = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Row = list[ast.stmt]
"""The statements of one line, nearly always one."""


@functools.lru_cache(maxsize=512)
def split(source: str, opens_private: bool = False) -> tuple[Chunk, ...]:
    """The chunks of a source, in order; a private class is one, unless it is to be opened as others are.

    Raises:
        ValueError: Python cannot read it; with the line.
    """
    body = parsed(source).body
    lines = LINE.findall(source)
    first = start_of(body[0]) if body else len(lines)
    header, rest = Lines(lines, 0, first), Lines(lines, first, len(lines))
    found = [Chunk("", header.text, "comment")] if header.text else []
    for row, part in rest.parts(rows(body)):
        opens = is_open(row[0], part, opens_private)
        found += read_class(row[0], part) if opens else read_statement(row, part)
        rest = rest.after(part.end)
    return (*found, Chunk("", rest.text, "comment")) if rest.text else tuple(found)


def parsed(source: str) -> ast.Module:
    """The syntax tree of a source; ValueError with the line if Python cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: this is not Python") from None
    except ValueError:  # a null byte
        line = source[: source.find("\0")].count("\n") + 1
        raise ValueError(f"line {line}: this is not Python") from None


@dataclass(frozen=True)
class Lines:
    """Lines of a source from `start` to `end`, counted from 0."""

    lines: Sequence[str]
    start: int
    end: int

    @property
    def text(self) -> str:
        """They themselves."""
        return "".join(self.lines[self.start : self.end])

    def after(self, line: int) -> "Lines":
        """Those from a line on."""
        return replace(self, start=line)

    def parts(self, body: Sequence[Row]) -> "Iterator[tuple[Row, Lines]]":
        """Each row of a body with its lines and the comments above it."""
        start = self.start
        limits = [*(start_of(row[0]) for row in body[1:]), self.end]
        for row, limit in zip(body, limits, strict=False):  # none for an empty body
            end = self.end_of(row[-1], limit)
            yield row, Lines(self.lines, start, end)
            start = end

    def end_of(self, node: ast.stmt, limit: int) -> int:
        """The line behind a statement, and behind the comments below it that are indented as its block is."""
        end, indent = node.end_lineno or 0, self.indent_of_block(node)
        below = [line for line in range(end, limit) if indent and self.lines[line].startswith(indent)]
        return below[-1] + 1 if below else end

    def indent_of_block(self, node: ast.AST) -> str:
        """The space before the last statement in a statement; none if that has no lines of its own."""
        own = self.indent(start_of(node))
        while inner := [each for name in BLOCKS for each in getattr(node, name, ())]:
            node = inner[-1]
            if len(indent := self.indent(start_of(node))) > len(own):
                return indent
        return ""

    def indent(self, line: int) -> str:
        """The space before a line."""
        text = self.lines[line]
        return text[: len(text) - len(text.lstrip())]

    def head(self, node: Block) -> "Lines":
        """A class or function up to its docstring."""
        first = rows(node.body)[0]
        if is_string(first):
            return Lines(self.lines, self.start, first[0].end_lineno or 0)
        end = start_of(first[0])
        while NO_CODE.fullmatch(self.lines[end - 1]):
            end -= 1
        return Lines(self.lines, self.start, end)

    def has_block(self, node: Block) -> bool:
        """Whether the code of a class or function stands on lines of its own."""
        first = node.body[0]
        return not self.lines[first.lineno - 1][: first.col_offset].strip()


def start_of(node: ast.AST) -> int:
    """The line that a statement starts in, counted from 0: its first decorator's if it has one."""
    first: Any = [*getattr(node, "decorator_list", []), node][0]
    line: int = getattr(first, "pattern", first).lineno  # a `case` has no line itself
    return line - 1


def rows(body: Iterable[ast.stmt]) -> list[Row]:
    """Statements line by line, an assignment with the string below that documents it."""
    found: list[Row] = []
    for node in body:
        if found and start_of(node) < (found[-1][-1].end_lineno or 0):
            found[-1].append(node)
        else:
            found.append([node])
    for i in range(len(found) - 1, 0, -1):
        if is_string(found[i]) and assigned(found[i - 1]):
            found[i - 1] += found.pop(i)
    return found


def read_class(node: ast.stmt, lines: Lines) -> Iterator[Chunk]:
    """A chunk that opens a class, its members, and one that closes it."""
    assert isinstance(node, ast.ClassDef)
    head, body = lines.head(node), rows(node.body)
    docstring = body[0] if is_string(body[0]) else []
    opening = [each for each in ast.iter_child_nodes(node) if each not in node.body] + docstring
    yield from read_text(head.text, Chunk("", "", "open", (node.name,), words_in(opening)))
    rest = lines.after(head.end)
    for row, part in rest.parts(body[len(docstring) :]):
        yield from read_statement(row, part, f"{node.name}.")
        rest = rest.after(part.end)
    yield Chunk("", rest.text, "close", (node.name,))


def read_statement(row: Row, lines: Lines, owner: str = "") -> Iterator[Chunk]:
    """A chunk for a statement, after others for comments that stand apart above it."""
    node = row[0]
    found = Chunk("", "", "plain", words=words_in(row))
    tail = None
    if isinstance(node, Block):
        kind = "type" if isinstance(node, ast.ClassDef) else "function"
        found = replace(found, kind=kind, names=(owner + node.name,), is_private=is_private(node.name))
        if kind == "function" and lines.has_block(node):
            tail = len(lines.after(lines.head(node).end).text)
    elif names := assigned(row):
        is_droppable = not owner and len(names) == 1 and names[0].isupper()
        names = tuple(owner + name for name in names)
        found = replace(found, kind="constant", names=names, is_private=is_droppable)
    elif isinstance(node, Import):
        found = Chunk("", "", "import", tuple(aliases(node)), label=origin(node))
    elif is_string(row):
        found = replace(found, kind="docstring", label="docstring")
    yield from read_text(lines.text, found, tail)


def read_text(text: str, found: Chunk, tail: int | None = None) -> Iterator[Chunk]:
    """A chunk with its text, the last `tail` characters of which are a function's own code."""
    while True:
        gap = GAP.match(text)[0]  # type: ignore[index]
        text = text[len(gap) :]
        apart = COMMENTS.match(text)
        if apart is None:
            break
        yield Chunk(gap, apart[0], "comment")
        text = text[apart.end() :]
    body = None if tail is None else (len(text) - tail, len(text))
    yield replace(found, gap=gap, text=text, body=body)


def is_open(node: ast.stmt, lines: Lines, opens_private: bool) -> bool:
    """Whether it is a class whose members are chunks: a public one, unless told otherwise, that has some."""
    if not isinstance(node, ast.ClassDef) or (is_private(node.name) and not opens_private):
        return False
    body = rows(node.body)
    return lines.has_block(node) and len(body) > is_string(body[0])


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is not Python's own."""
    return name.startswith("_") and not name.endswith("__")


def is_string(row: Sequence[ast.stmt]) -> bool:
    """Whether a line is nothing but a string."""
    value = row[0].value if len(row) == 1 and isinstance(row[0], ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str | bytes)


def assigned(row: Iterable[ast.stmt]) -> tuple[str, ...]:
    """The names that a line assigns to."""
    targets: list[ast.expr] = []
    for statement in row:
        targets += statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def words_of(text: str) -> frozenset[str]:
    """Every name that code reads, as variable or in a string that is nothing else, and attributes as `.x`.

    A name that a docstring mentions has a backquote in front.
    """
    text = GAP.sub("", text, count=1)
    return words_in([ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)])


def words_in(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The same of parts of a syntax tree."""
    names: set[str] = set()
    for node in (inner for each in nodes for inner in ast.walk(each)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(f".{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            names.update(f"`{name}" for name in IN_PROSE.findall(str(node.value.value)))
    return frozenset(names)
