"""The bank of wrong solutions: entries tied to symbols of the reference, read, applied and written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.course import COURSE, Day
from scripts.lexing import canonical, find_matches, substitute
from scripts.sandbox import Run
from scripts.setup import load_toml
from scripts.sources.files import SHARED, read_reference, source_files
from scripts.symbols import Package, Symbol, undefined_names

BANK = COURSE / "wrong"


def read_package() -> Package:
    """The reference, and the package that it imports, as if that lay beside it."""
    shared = {
        Path("..", SHARED.name, path.relative_to(SHARED)): path.read_text(encoding="utf-8")
        for path in source_files(SHARED)
    }
    return Package({**read_reference(), **shared})


@dataclass(frozen=True)
class WrongSolution:
    """A misconception of a task, and what it makes of one symbol of the reference.

    Either `body` is the symbol's whole new definition, or `replace` takes the place of `find` in it. A
    fragment `near` elsewhere in the symbol says which of its local variables `replace` means.
    """

    day: Day
    task: int
    name: str
    misconception: str
    symbol: str
    find: str = ""
    replace: str = ""
    body: str = ""
    near: str = ""

    @property
    def id(self) -> str:
        """Unique in the bank."""
        return f"{self.day.week}.{self.day.day}.{self.task} {self.name}"

    def code(self, symbol: Symbol) -> str:
        """What becomes of the symbol.

        Raises:
            ValueError: the place to change is not there, or is there more than once.
        """
        if self.body:
            return canonical(self.body, symbol.is_python)
        matches = find_matches(symbol.code, self.find, self.near, symbol.is_python)
        if len(matches) != 1:
            raise ValueError(f"`find` matches {len(matches)} times in {symbol.key}")
        return canonical(
            substitute(symbol.code, matches[0], self.replace, symbol.is_python), symbol.is_python
        )

    def run(self, package: Package, first: Iterable[str] = ()) -> Run:
        """The tests of its task up to the first that fails, on the reference with the misconception.

        Raises:
            ValueError: the entry does not fit the reference.
        """
        try:
            symbol = package.find(self.symbol)
            source = symbol.replaced(self.code(symbol))
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
    """Demand of a changed source what a misconception needs.

    Raises:
        ValueError: it cannot be parsed, or uses a name that nothing defines.
    """
    try:
        undefined = undefined_names(path, source)
    except SyntaxError as error:
        raise ValueError(f"{error.msg} in `{(error.text or '').strip()}`") from None
    if undefined:
        raise ValueError(f"nothing defines {', '.join(sorted(undefined))}")


def load_bank(days: Iterable[Day], folder: Path = BANK) -> list[WrongSolution]:
    """All wrong solutions of some days, in the order of the course.

    Raises:
        ValueError: a field is missing or unknown.
    """
    return [
        read_entry(day, entry)
        for day in days
        if bank_file(day, folder).exists()
        for entry in load_toml(bank_file(day, folder).read_text(encoding="utf-8"))["wrong"]
    ]


def bank_file(day: Day, folder: Path = BANK) -> Path:
    """The file with the entries of a day."""
    return folder / f"{day.test_file.stem.removeprefix('test_')}.toml"


def read_entry(day: Day, entry: Mapping[str, Any]) -> WrongSolution:
    """An entry of a file."""
    try:
        solution = WrongSolution(day, **entry)
    except TypeError as error:
        raise ValueError(
            f"{entry.get('name', 'an entry')} of week {day.week} day {day.day}: {error}"
        ) from None
    if bool(solution.find) == bool(solution.body):
        raise ValueError(f"{solution.id} needs either `find` and `replace` or `body`")
    return solution
