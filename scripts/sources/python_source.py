"""A Python source cut into chunks by libcst; what is not changed keeps its bytes."""

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from scripts.sources.chunks import GAP, Chunk

LINE_LENGTH = 110
COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*\n)+(?=[ \t]*\r?\n)")
Block = cst.ClassDef | cst.FunctionDef
Show = Callable[..., str]
"""The text of statements, where they are."""


@functools.lru_cache(maxsize=512)
def split(source: str, opens_private: bool = False) -> tuple[Chunk, ...]:
    """The chunks of a source, in order; a private class is one, unless it is to be opened as others are.

    Raises:
        ValueError: Python cannot read it; with the line.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"line {error.raw_line}: this is not Python") from None

    def show(*nodes: cst.CSTNode) -> str:
        return "".join(module.code_for_node(node) for node in nodes)

    found = [Chunk("", show(*module.header), "comment")] if module.header else []
    for nodes in statements(module.body):
        opens = is_open(nodes[0], opens_private)
        found += read_class(show, nodes[0]) if opens else read_statement(show, nodes)
    found += [Chunk("", show(*module.footer), "comment")] if module.footer else []
    num_extra = sum(len(chunk.gap + chunk.text) for chunk in found) - len(source)
    if num_extra:  # the end of the last line, which the source lacks
        last = max(i for i, chunk in enumerate(found) if chunk.text)
        found[last] = without_end(found[last], num_extra)
    return tuple(found)


def without_end(chunk: Chunk, number: int) -> Chunk:
    """A chunk without its last characters."""
    body = (chunk.body[0], chunk.body[1] - number) if chunk.body else None
    return replace(chunk, text=chunk.text[:-number], body=body)


def statements(nodes: Sequence[cst.BaseStatement]) -> list[list[cst.BaseStatement]]:
    """The statements one by one, an assignment with the string below that documents it."""
    groups: list[list[cst.BaseStatement]] = []
    for node in nodes:
        if groups and is_string(node) and len(groups[-1]) == 1 and assigned(groups[-1][0]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def read_class(show: Show, node: cst.BaseStatement) -> Iterator[Chunk]:
    """A chunk that opens a class, its members, and one that closes it."""
    assert isinstance(node, cst.ClassDef)
    name, head, opening = node.name.value, head_of(show, node), without_code(node)

    def show_members(*nodes: cst.BaseStatement) -> str:
        return show(with_members(opening, [*members_of(opening), *nodes]))[len(head) :]

    yield from read_text(head, Chunk("", "", "open", (name,), words_of(show(opening))))
    size = len(head)
    for nodes in statements(members_of(node)[len(members_of(opening)) :]):
        size += len(show_members(*nodes))
        yield from read_statement(show_members, nodes, f"{name}.")
    yield Chunk("", show(node)[size:], "close", (name,))


def read_statement(show: Show, nodes: Sequence[cst.BaseStatement], owner: str = "") -> Iterator[Chunk]:
    """A chunk for a statement, after others for comments that stand apart above it."""
    node, text = nodes[0], show(*nodes)
    found = Chunk("", "", "plain", words=words_of(text))
    tail = None
    if isinstance(node, Block):
        kind = "function" if isinstance(node, cst.FunctionDef) else "type"
        name = node.name.value
        found = replace(found, kind=kind, names=(owner + name,), is_private=is_private(name))
        if kind == "function" and isinstance(node.body, cst.IndentedBlock):
            tail = len(text) - len(head_of(show, node))
    elif names := assigned(node):
        is_droppable = not owner and len(names) == 1 and names[0].isupper()
        names = tuple(owner + name for name in names)
        found = replace(found, kind="constant", names=names, is_private=is_droppable)
    elif statement := imported(node):
        found = Chunk("", "", "import", tuple(aliases(statement)), label=origin(statement))
    elif is_string(node):
        found = replace(found, kind="docstring", label="docstring")
    yield from read_text(text, found, tail)


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


def head_of(show: Show, node: Block) -> str:
    """A class or function up to its docstring."""
    opening = without_code(node)
    text = show(opening)
    return (
        text if members_of(opening) else "".join(text.splitlines(keepends=True)[:-1])
    )  # libcst adds a `pass`


def without_code(node: Block) -> Block:
    """A class or function with nothing but its docstring."""
    return with_members(node, members_of(node)[: is_string(members_of(node)[0])])


def members_of(node: Block) -> Sequence[cst.BaseStatement]:
    """The statements in a class or function that has them on lines of their own."""
    assert isinstance(node.body, cst.IndentedBlock)
    return node.body.body


def with_members(node: Block, members: Sequence[cst.BaseStatement]) -> Block:
    """The same class or function with other statements in it."""
    return node.with_changes(body=node.body.with_changes(body=members, footer=()))


def is_open(node: cst.BaseStatement, opens_private: bool) -> bool:
    """Whether it is a class whose members are chunks: a public one, unless told otherwise, that has some."""
    if not isinstance(node, cst.ClassDef) or (is_private(node.name.value) and not opens_private):
        return False
    return isinstance(node.body, cst.IndentedBlock) and len(members_of(node)) > is_string(members_of(node)[0])


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is not Python's own."""
    return name.startswith("_") and not name.endswith("__")


def is_string(node: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    """Whether a statement is nothing but a string."""
    if isinstance(node, cst.SimpleStatementLine):
        return len(node.body) == 1 and is_string(node.body[0])
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)


def assigned(node: cst.BaseStatement) -> tuple[str, ...]:
    """The names that a statement assigns to."""
    found: list[str] = []
    for statement in node.body if isinstance(node, cst.SimpleStatementLine) else ():
        targets = [each.target for each in statement.targets] if isinstance(statement, cst.Assign) else []
        targets += [statement.target] if isinstance(statement, cst.AnnAssign) else []
        found += [target.value for target in targets if isinstance(target, cst.Name)]
    return tuple(found)


def words_of(text: str) -> frozenset[str]:
    """Every name that code reads, as variable or in a string that is nothing else, and attributes as `.x`."""
    text = GAP.sub("", text, count=1)
    names: set[str] = set()
    for node in ast.walk(ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(f".{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return frozenset(names)


# Imports: a chunk of one binds several names, and each comes and goes by itself.


def imported(node: cst.BaseStatement) -> cst.Import | cst.ImportFrom | None:
    """The import that a statement is, if it is one."""
    first = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return first if isinstance(first, cst.Import | cst.ImportFrom) else None


def origin(statement: cst.Import | cst.ImportFrom) -> str:
    """The words in front of the names: `from .module import `; of a plain import all of it."""
    code = cst.Module([]).code_for_node(statement)
    return code if isinstance(statement, cst.Import) else code[: code.index("import") + len("import")]


def aliases(statement: cst.Import | cst.ImportFrom) -> dict[str, str]:
    """What a statement imports: `a as b` by the name that it binds."""
    if isinstance(statement.names, cst.ImportStar):
        return {"*": "*"}
    found = {}
    for alias in statement.names:
        code = cst.Module([]).code_for_node(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        found[re.split(r"\W+", code)[-1] if alias.asname else code.split(".")[0]] = code
    return found


def aliases_of(chunk: Chunk) -> dict[str, str]:
    """What an import's chunk imports: `a as b` by the name that it binds."""
    statement = imported(cst.parse_module(chunk.text).body[0])
    assert statement is not None
    return aliases(statement)


def with_aliases(chunk: Chunk, chosen: Mapping[str, str]) -> Chunk:
    """An import of these names instead, in the house's order and format; comments stay."""
    statement = imported(cst.parse_module(chunk.text).body[0])
    assert statement is not None
    words = sorted(chosen.values(), key=import_order)
    start = "import" if isinstance(statement, cst.Import) else origin(statement)
    line = f"{start} {', '.join(words)}"
    if len(line) > LINE_LENGTH:
        line = f"{start} (\n" + "".join(f"    {word},\n" for word in words) + ")"
    if "\r\n" in chunk.text:
        line = line.replace("\n", "\r\n")
    text = chunk.text.replace(cst.Module([]).code_for_node(statement), line, 1)
    return replace(chunk, text=text, names=tuple(chosen))


def import_order(code: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    name = code.split()[0]
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name
