"""Definitions of a module by name, and its lines: what `ast` says of them, read and replaced.

Everything here maps text to text. What is not replaced keeps its bytes.
"""

import ast
import functools
import io
import re
from dataclasses import dataclass

from scripts.render import Definition, Function, parse

Import = ast.Import | ast.ImportFrom

HOLE = re.compile(r"week (\d+) day (\d+) task (\d+): (\S+) is not written yet")
LINE_LENGTH = 110


@dataclass(frozen=True)
class Item:
    """A statement that binds names at the top of a module or class, and its lines, counted from 1.

    `last` includes the string that documents a constant, `first` the decorators.
    """

    node: ast.stmt
    names: tuple[str, ...]
    first: int
    last: int


def functions(tree: ast.Module) -> dict[str, Function]:
    """Functions and methods by their dotted names."""
    found: dict[str, Function] = {}
    for node in tree.body:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{child.name}": child for child in node.body if isinstance(child, Function)
            }
    return found


def find_function(tree: ast.Module, name: str) -> Function | None:
    """The function or method of that dotted name, or None."""
    return functions(tree).get(name)


def hole_of(function: Function) -> ast.Raise | None:
    """The statement that says the function is not written yet, if that is all it does."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or body[0].lineno == function.lineno:
        return None
    return body[0] if HOLE.search(ast.unparse(body[0])) else None


def holes(source: str) -> dict[str, str]:
    """The sentence of each hole of a module, by the function's dotted name."""
    sentences = {name: hole_of(function) for name, function in functions(parse(source)).items()}
    return {
        name: match.group(0)
        for name, hole in sentences.items()
        if hole and (match := HOLE.search(ast.unparse(hole)))
    }


def body_range(function: Function) -> tuple[int, int]:
    """First and last line of what follows the docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    return ((first.end_lineno or 0) + 1 if has_docstring else first.lineno), function.end_lineno or 0


def is_private(name: str) -> bool:
    """Whether a name starts with one underscore and is not Python's own."""
    return name.startswith("_") and not name.endswith("__")


def is_bound(source: str, name: str) -> bool:
    """Whether a module binds a dotted name at its top, or in a class there."""
    owner, _, last = name.rpartition(".")
    return last in bound_names(source, owner)


@functools.lru_cache(maxsize=1024)
def bound_names(source: str, owner: str) -> frozenset[str]:
    """What a module binds at its top, or in a class there."""
    return frozenset([name for item in items(body_of(parse(source), owner)) for name in item.names])


def body_of(tree: ast.Module, owner: str) -> list[ast.stmt]:
    """The statements of a class, or of the module without a name; none if there is no such class."""
    if not owner:
        return tree.body
    return next(
        (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner), []
    )


def items(body: list[ast.stmt]) -> list[Item]:
    """The statements that bind names, with their lines."""
    found = []
    for position, node in enumerate(body):
        if names := names_of(node):
            last = node.end_lineno or node.lineno
            following = body[position + 1] if position + 1 < len(body) else None
            is_constant = isinstance(node, ast.Assign | ast.AnnAssign)
            if is_constant and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                last = following.end_lineno or last
            found.append(Item(node, names, start_of(node), last))
    return found


def names_of(node: ast.stmt) -> tuple[str, ...]:
    """The names that a statement binds."""
    if isinstance(node, Definition):
        return (node.name,)
    if isinstance(node, Import):
        return tuple(bound_name(alias) for alias in node.names)
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def bound_name(alias: ast.alias) -> str:
    """The name that an import makes."""
    return alias.asname or alias.name.split(".")[0]


def find_item(source: str, name: str) -> Item:
    """The item of that dotted name; KeyError if there is none."""
    owner, _, last = name.rpartition(".")
    for item in items(body_of(parse(source), owner)):
        if last in item.names:
            return item
    raise KeyError(name)


def item_range(source: str, name: str) -> tuple[int, int]:
    """First and last line of an item."""
    item = find_item(source, name)
    return item.first, item.last


def start_of(node: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def split_lines(source: str) -> list[str]:
    """Lines as Python counts them, with their ends; `str.splitlines` would also split at other characters."""
    return list(io.StringIO(source, newline=""))


def slice_lines(source: str, first: int, last: int) -> str:
    """Lines `first` to `last`, counted from 1."""
    return "".join(split_lines(source)[first - 1 : last])


def replace_lines(source: str, first: int, last: int, text: str) -> str:
    """The source with other text for these lines; it is inserted before `first` if `last` is less."""
    lines = split_lines(source)
    if "\r\n" in source:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    if first > 1 and not lines[first - 2].endswith(("\n", "\r")):
        text = "\n" + text
    return "".join([*lines[: first - 1], text, *lines[last:]])


def remove_lines(source: str, first: int, last: int) -> str:
    """The source without these lines; of the blank lines around them the larger gap stays."""
    lines = split_lines(source)
    above = below = 0
    while first - 2 - above >= 0 and not lines[first - 2 - above].strip():
        above += 1
    while last + below < len(lines) and not lines[last + below].strip():
        below += 1
    at_end = last + below == len(lines)
    kept = lines[first - 1 - above : first - 1] if above > below else lines[last : last + below]
    return "".join([*lines[: first - 1 - above], *([] if at_end else kept), *lines[last + below :]])
