"""The symbols of a package by name, wherever their modules lie: functions, classes, methods and constants."""

import ast
import builtins
import re
import symtable
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scripts.lexing import canonical, tokens
from scripts.sources.c_source import split
from scripts.sources.files import is_python


@dataclass(frozen=True)
class Symbol:
    """A definition in a source, from character `start` to `end`."""

    path: Path
    name: str
    source: str
    start: int
    end: int

    @property
    def is_python(self) -> bool:
        """Whether it is written in Python."""
        return is_python(self.path)

    @property
    def key(self) -> str:
        """Its full name: modules and classes with dots, and of a file in another language the suffix too."""
        path = self.path.with_suffix("") if self.is_python else self.path
        return ".".join([*(part for part in path.parts if part != ".."), self.name])

    @property
    def own_name(self) -> str:
        """Its name without modules; in another language than Python its file belongs to it."""
        return self.name if self.is_python else f"{self.path.name}.{self.name}"

    @property
    def text(self) -> str:
        """Its definition as the source has it."""
        return self.source[self.start : self.end]

    @cached_property
    def code(self) -> str:
        """Its definition without formatting and comments."""
        return canonical(self.text, self.is_python)

    def replaced(self, code: str) -> str:
        """The source with another definition in its place."""
        indent = self.text[: len(self.text) - len(self.text.lstrip(" "))] if self.is_python else ""
        return self.source[: self.start] + textwrap.indent(code, indent) + "\n" + self.source[self.end :]


class Package:
    """The symbols of some sources."""

    def __init__(self, sources: Mapping[Path, str]) -> None:
        self.sources = sources
        found = [symbol for path, source in sources.items() for symbol in symbols_of(path, source)]
        count = Counter(symbol.key for symbol in found)
        self.symbols = {symbol.key: symbol for symbol in found if count[symbol.key] == 1}  # no overloads
        self.by_own_name: dict[str, list[Symbol]] = {}
        for symbol in self.symbols.values():
            self.by_own_name.setdefault(symbol.own_name, []).append(symbol)

    def find(self, name: str) -> Symbol:
        """The symbol of a name that has as much of its modules in front as it takes to be unique.

        Raises:
            ValueError: there is none, or more than one.
        """
        found = self.by_own_name.get(name) or [
            symbol
            for symbol in self.symbols.values()
            if (symbol.key.endswith(f".{name}") and name.endswith(f".{symbol.own_name}"))
            or symbol.key == name
        ]
        if len(found) != 1:
            keys = " or ".join(symbol.key for symbol in found)
            raise ValueError(f"{name} is ambiguous: write {keys}" if found else f"there is no symbol {name}")
        return found[0]

    def short_name(self, symbol: Symbol) -> str:
        """The shortest name that `find` finds the symbol by."""
        parts = symbol.key.removesuffix(symbol.own_name).split(".")[:-1]
        name = symbol.own_name
        while len(self.by_own_name[symbol.own_name]) > 1 and parts:
            name = f"{parts.pop()}.{name}"
            if sum(f".{other.key}".endswith(f".{name}") for other in self.by_own_name[symbol.own_name]) == 1:
                break
        return name

    @cached_property
    def defined(self) -> set[str]:
        """The names of its symbols, and of the attributes that its classes have."""
        sources = "\n".join(source for path, source in self.sources.items() if is_python(path))
        attributes = re.findall(r"\bself\.(\w+)|^    (\w+): ", sources, re.M)
        names = {symbol.name.rpartition(".")[2] for symbol in self.symbols.values()}
        return names.union(*attributes)

    @cached_property
    def words(self) -> set[str]:
        """Every word of its sources."""
        return {
            token.text for path, source in self.sources.items() for token in tokens(source, is_python(path))
        }


def symbols_of(path: Path, source: str) -> Iterator[Symbol]:
    """The symbols of one source, a class before its members."""
    if not is_python(path):
        position = 0
        for chunk in split(source):
            start = position + len(chunk.gap)
            position = start + len(chunk.text)
            if chunk.names and chunk.kind in ("function", "type", "constant", "define"):
                yield Symbol(path, chunk.names[0], source, start, position)
        return
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for name, node in named_nodes(ast.parse(source), ""):
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        yield Symbol(path, name, source, starts[first - 1], starts[node.end_lineno or first])


def named_nodes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    """The definitions of a module or class with their dotted names, and the constants of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from named_nodes(node, f"{prefix}{node.name}.")
        elif isinstance(tree, ast.Module) and isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield target.id, node


def undefined_names(path: Path, source: str) -> set[str]:
    """Names that a source in Python uses and that nothing defines; in other languages the compiler tells."""
    if not is_python(path):
        return set()
    module = symtable.symtable(source, str(path), "exec")
    defined = {
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    return set(global_names(module)) - defined - set(dir(builtins)) - {"__file__", "__name__", "__path__"}


def global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """The names that a scope and those in it look for in the module."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for child in table.get_children():
        yield from global_names(child)
