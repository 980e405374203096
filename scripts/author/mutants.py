"""Mutate the reference automatically, one small change at a time, and see which changes no test notices."""

import ast
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from scripts.author.mutations import functions, mutations
from scripts.author.wrong import is_caught
from scripts.bank.entries import BANK
from scripts.bank.matching import unify
from scripts.course import Day, load_course
from scripts.errors import usage_errors
from scripts.sandbox import Run, run_all
from scripts.setup import load_toml
from scripts.sources.files import read_reference
from scripts.sources.python_source import words_of
from scripts.sources.render import owned_functions
from scripts.sources.symbols import Package, Symbol
from scripts.sources.tokens import local_names, tokens

SURVIVORS = BANK / "survivors.toml"
AIM = 0.95
MEMORY = 3 * 2**30  # bytes a run may use: a loop that never ends may fill a list


@dataclass(frozen=True)
class Mutant:
    """The package with one node of one function changed.

    The id says what is changed and not where, so that it outlives a move of the lines or of the module.
    """

    id: str
    symbol: Symbol
    line: int
    days: tuple[Day, ...]
    source: Callable[[], str]

    def run(self, reference: dict[Path, str]) -> Run:
        """The tests of the days that ask for the function, up to the first that fails."""
        tests = [str(day.test_file) for day in self.days]
        return Run(self.id, {**reference, self.symbol.path: self.source()}, tests, ["-x", "--tb=line"])


def all_mutants(reference: dict[Path, str]) -> Iterator[Mutant]:
    """Every mutant of every Python function that a task asks for, and of the helpers of its module."""
    package = Package(reference)
    course = load_course()
    day_of = {task.id: day for day in course.days for task in day.tasks}
    sources = {file: source for file, source in reference.items() if file.suffix == ".py"}
    trees = {file: ast.parse(source) for file, source in sources.items()}
    words = {file: words_of(source) for file, source in sources.items()}
    owned = {
        file: {name: day_of[task.id] for name, task in owned_functions(file, source, course).items()}
        for file, source in sources.items()
    }
    for file, tree in trees.items():
        if not owned[file]:
            continue
        for path, function in functions(tree):
            if path in owned[file]:
                days = {owned[file][path]}
            else:
                users = [other for other in trees if other == file or function.name in words[other]]
                days = {day for user in users for day in owned[user].values()}
            symbol = package.symbols[".".join([*file.with_suffix("").parts, path])]
            name = package.short_name(symbol)
            seen: Counter[str] = Counter()
            for description, line, mutated in mutations(tree, function):
                alike = without_variables(description, symbol)
                seen[alike] += 1
                number = f" #{seen[alike]}" if seen[alike] > 1 else ""
                id = f"{name}: {description}{number}"
                yield Mutant(id, symbol, line, tuple(sorted(days)), mutated)


def without_variables(description: str, symbol: Symbol) -> str:
    """A change to a function, whatever its local variables are called."""
    _, code, change = parts_of(f": {description}")
    variables = local_names(symbol.code, is_python=True)
    found = tokens(code, is_python=True)
    return " ".join("_" if each.is_name and each.text in variables else each.text for each in found) + change


Module = Annotated[str | None, typer.Option(help="Only mutants of this module, such as sampler.")]
Sample = Annotated[int | None, typer.Option(min=1, help="Only so many, drawn at random.")]
Seed = Annotated[int, typer.Option(help="Of the draw.")]


def main(module: Module = None, sample: Sample = None, seed: Seed = 0) -> None:
    """Change the reference in one place at a time and list the changes that no test notices.

    Example: pdm run author mutants --module sampler
    """
    start = time.perf_counter()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with usage_errors():
        reference = read_reference()
        everything = list(all_mutants(reference))
        known = [present_id(name, everything) for name in known_survivors()]
        mutants = [mutant for mutant in everything if module in (None, mutant.symbol.path.stem)]
        if not mutants:
            raise ValueError(f"there is no module {module!r} that a task asks for")
        if sample is not None:
            mutants = Random(seed).sample(mutants, min(sample, len(mutants)))
        runs = (mutant.run(reference) for mutant in mutants)
        outcomes = track(run_all(runs), "mutants", total=len(mutants), console=Console(stderr=True))
        alive = {outcome.name for outcome in outcomes if not is_caught(outcome) and not outcome.exit_code}
    survivors = [mutant for mutant in mutants if mutant.id in alive]
    new = [mutant for mutant in survivors if mutant.id not in known]
    for mutant in new:
        print(f"not caught: {mutant.id} ({mutant.symbol.path}, line {mutant.line})")
    mistakes = list(list_mistakes(known, everything, mutants, alive))
    for mistake in mistakes:
        print(mistake)
    caught = len(mutants) - len(survivors)
    share = caught / len(mutants)
    print(
        f"{caught} of {len(mutants)} mutants caught, {share:.1%}, in {time.perf_counter() - start:.0f} s; "
        f"of the others {len(survivors) - len(new)} have a reason and {len(new)} are new"
    )
    misses_aim = share < AIM and len(mutants) == len(everything)  # a few excused ones weigh much in a module
    if misses_aim:
        print(f"that is less than the {AIM:.0%} that the tests are to catch")
    sys.exit(1 if new or mistakes or misses_aim else 0)


def list_mistakes(
    known: Collection[str], everything: Collection[Mutant], tried: Collection[Mutant], alive: Collection[str]
) -> Iterator[str]:
    """A sentence on each listed survivor that is none: no such mutant is made, or a test catches it."""
    made, ran = {mutant.id for mutant in everything}, {mutant.id for mutant in tried}
    for name in known:
        if name not in made:
            yield f"stale: no such mutant is made any more, so take it out of {SURVIVORS.name}: {name}"
        elif name in ran and name not in alive:
            yield f"stale: a test catches it by now, so take it out of {SURVIVORS.name}: {name}"


def present_id(known: str, mutants: Collection[Mutant]) -> str:
    """The id of the mutant that an id means, whatever the local variables are called by now; else itself."""
    if any(mutant.id == known for mutant in mutants):
        return known
    name, code, change = parts_of(known)
    found = []
    for mutant in mutants:
        if mutant.id.startswith(f"{name}: ") and mutant.id.endswith(change):
            _, now, other = parts_of(mutant.id)
            wanted, text = tokens(code, is_python=True), tokens(now, is_python=True)
            variables = local_names(mutant.symbol.code, is_python=True)
            renamed = {token.text for token in wanted if token.is_name and not is_word_of(token.text, mutant)}
            if other == change and unify(wanted, text, renamed, variables) is not None:
                found.append(mutant.id)
    return found[0] if len(found) == 1 else known


def is_word_of(word: str, mutant: Mutant) -> bool:
    """Whether the function that a mutant changes has a word."""
    return any(token.is_name and token.text == word for token in tokens(mutant.symbol.code, is_python=True))


def parts_of(id: str) -> tuple[str, str, str]:
    """Symbol, code and change of a mutant's id."""
    name, _, rest = id.partition(": ")
    code, _, change = rest.rpartition(" with ")
    return name, ast.literal_eval(code), change


def known_survivors() -> dict[str, str]:
    """Reasons of the survivors that were looked at, by the mutant's id."""
    entries = load_toml(SURVIVORS.read_text(encoding="utf-8"))["survivor"]
    return {entry["id"]: entry["reason"] for entry in entries}


if __name__ == "__main__":
    typer.run(main)
