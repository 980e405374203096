"""The functions of a Python source: which one a line belongs to, and the lines of code of each."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function of a source.

    Attributes:
        name: dotted, with the classes and functions around it.
        lines: the numbers of its lines, those of its decorators included.
        code: those of its lines that are neither empty nor comments nor part of a docstring.
    """

    name: str
    lines: range
    code: frozenset[int]


@cache
def functions_of(file: Path) -> tuple[Function, ...]:
    """The functions of a source; one within another comes after it."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = source.split("\n")
    written = {number for number, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    code = written - {number for node in ast.walk(tree) for number in docstring_lines(node)}
    return tuple(
        Function(name, lines_of(node), frozenset(code.intersection(lines_of(node))))
        for name, node in definitions(tree)
    )


def function_at(file: Path, line: int) -> str | None:
    """The innermost function that a line belongs to; None for a line of the module itself."""
    names = [each.name for each in functions_of(file) if line in each.lines]
    return names[-1] if names else None


def count_code(file: Path, names: Collection[str]) -> int:
    """Lines of code of these functions together."""
    return len(frozenset[int]().union(*(each.code for each in functions_of(file) if each.name in names)))


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """The functions below a node, with their dotted names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
        inner = f"{prefix}{child.name}." if isinstance(child, Definition | ast.ClassDef) else prefix
        yield from definitions(child, inner)


def lines_of(node: Definition) -> range:
    """From the first decorator to the last line."""
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def docstring_lines(node: ast.AST) -> range:
    """The lines of the docstring of a module, class or function, if this is one that has it."""
    if isinstance(node, ast.Module | ast.ClassDef | Definition) and ast.get_docstring(node) is not None:
        first = node.body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)
