"""Banks of wrong and right solutions: entries tied to symbols of the reference, read, applied and written."""

import builtins
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bank.edits import Edit
from scripts.course import COURSE, Day
from scripts.sandbox import Run
from scripts.setup import load_toml
from scripts.sources.files import SHARED, is_python, read_reference, source_files
from scripts.sources.symbols import Package

BANK = COURSE / "wrong"
RIGHT = COURSE / "right"
THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")
"""The link of a public report."""


def read_package() -> Package:
    """The reference, and the package that it imports, as if that lay beside it."""
    shared = {
        Path("..", SHARED.name, path.relative_to(SHARED)): path.read_text(encoding="utf-8")
        for path in source_files(SHARED)
    }
    return Package({**read_reference(), **shared})


@dataclass(frozen=True)
class Solution:
    """What a misconception, or another style, makes of one symbol of the reference, as an Edit says it.

    `seen_in` is the link of a public report that it is like, if there is one.
    """

    day: Day
    task: int
    name: str
    symbol: str
    misconception: str = ""
    find: str = ""
    replace: str = ""
    body: str = ""
    near: str = ""
    style: str = ""
    seen_in: str = ""

    @property
    def id(self) -> str:
        """Unique in its bank."""
        return f"{self.day.week}.{self.day.day}.{self.task} {self.name}"

    @property
    def edit(self) -> Edit:
        """What becomes of the symbol."""
        return Edit(self.find, self.replace, self.near, self.body)

    def run(self, package: Package, first: Iterable[str] = ()) -> Run:
        """The tests of its task up to the first that fails, on the reference changed like this.

        Raises:
            ValueError: the entry does not fit the reference.
        """
        try:
            symbol = package.find(self.symbol)
            source = symbol.replaced(self.edit.code(symbol))
            check_source(symbol.path, source)
        except ValueError as error:
            raise ValueError(f"{self.id}: {error}") from None
        is_shared = ".." in symbol.path.parts
        sources = {
            path: text for path, text in package.sources.items() if is_shared or ".." not in path.parts
        }
        sources[symbol.path] = source
        options = ["--task", str(self.task), "-x", "--tb=line"]
        return Run(self.id, sources, [str(self.day.test_file)], options, tuple(first))


def check_source(path: Path, source: str) -> None:
    """Demand of a changed source what its tests need.

    Raises:
        ValueError: it cannot be parsed, or uses a name that nothing defines.
    """
    try:
        undefined = undefined_names(path, source)
    except SyntaxError as error:
        raise ValueError(f"{error.msg} in `{(error.text or '').strip()}`") from None
    if undefined:
        raise ValueError(f"nothing defines {', '.join(sorted(undefined))}")


def load_bank(days: Iterable[Day], folder: Path = BANK) -> list[Solution]:
    """All solutions that a bank has for some days, in the order of the course.

    Raises:
        ValueError: a field is missing or unknown.
    """
    return [
        read_entry(day, entry)
        for day in days
        if bank_file(day, folder).exists()
        for entries in load_toml(bank_file(day, folder).read_text(encoding="utf-8")).values()
        for entry in entries
    ]


def bank_file(day: Day, folder: Path = BANK) -> Path:
    """The file with the entries of a day."""
    return folder / f"{day.stem}.toml"


def read_entry(day: Day, entry: Mapping[str, Any]) -> Solution:
    """An entry of a file."""
    try:
        solution = Solution(day, **entry)
    except TypeError as error:
        raise ValueError(
            f"{entry.get('name', 'an entry')} of week {day.week} day {day.day}: {error}"
        ) from None
    if bool(solution.find) == bool(solution.body):
        raise ValueError(f"{solution.id} needs either `find` and `replace` or `body`")
    if bool(solution.misconception) == bool(solution.style):
        raise ValueError(f"{solution.id} needs `misconception` if it is wrong, and `style` if it is right")
    if solution.seen_in and not THREAD.fullmatch(solution.seen_in):
        raise ValueError(
            f"{solution.id}: `seen_in` is {solution.seen_in}: give the link of a thread on GitHub"
        )
    return solution


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
