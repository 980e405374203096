"""The symbols of sources by name, wherever their modules lie: functions, classes, methods and constants."""

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scripts.sources import c_source, python_source
from scripts.sources.chunks import HOLE, HOLE_STATEMENT, Chunk, classes
from scripts.sources.files import is_python
from scripts.sources.tokens import canonical, tokens

KINDS = ("function", "type", "open", "constant", "define")


@dataclass(frozen=True)
class Symbol:
    """A definition in a source, with the comment right above it: from character `start` to `end`."""

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


def split(path: Path, source: str) -> tuple[Chunk, ...]:
    """The chunks of a source, in order; ValueError with the line if it cannot be read."""
    return python_source.split(source) if is_python(path) else c_source.split(source)


def split_like(path: Path, text: str, source: str) -> list[Chunk]:
    """The chunks of a text, with line ends as the source has them."""
    text = text.replace("\r\n", "\n")
    return list(split(path, text.replace("\n", "\r\n") if "\r\n" in source else text))


def words_of(path: Path, code: str) -> frozenset[str]:
    """Every name that code of a source uses, as its chunks have it."""
    return python_source.words_of(code) if is_python(path) else c_source.words_of(code)


def symbols_of(path: Path, source: str) -> Iterator[Symbol]:
    """The symbols of one source, a class before its members."""
    chunks = python_source.split(source, True) if is_python(path) else c_source.split(source)
    closing = classes(chunks)
    ends = [*itertools.accumulate((len(chunk.gap + chunk.text) for chunk in chunks), initial=0)]
    for i, chunk in enumerate(chunks):
        for name in chunk.names if chunk.kind in KINDS else ():
            yield Symbol(path, name, source, ends[i] + len(chunk.gap), ends[closing.get(i, i) + 1])


def holes_of(path: Path, source: str) -> dict[str, str]:
    """The sentence of each hole of a source, by the function's dotted name."""
    if HOLE.search(source) is None:
        return {}
    if not is_python(path):
        return c_source.holes(source)
    dug = [chunk for chunk in python_source.split(source) if chunk.is_hole]
    return {chunk.names[0]: hole[1] for chunk in dug if (hole := HOLE_STATEMENT.search(chunk.inside))}


def definition_of(path: Path, source: str, name: str) -> str:
    """The text that defines a dotted name, as it is indented, with the comment right above it.

    Raises:
        KeyError: the source does not define it.
    """
    found = [symbol.text for symbol in symbols_of(path, source) if symbol.name == name]
    if not found:
        raise KeyError(name)
    return "".join(found)
