"""Mutate the reference automatically, one small change at a time, and see which changes no test notices."""

import ast
import copy
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from scripts.author.wrong import is_caught
from scripts.bank import BANK
from scripts.course import Day, load_course
from scripts.errors import usage_errors
from scripts.lexing import local_names, tokens, unify
from scripts.sandbox import Run, run_all
from scripts.setup import load_toml
from scripts.sources.files import read_reference
from scripts.sources.python_source import words_of
from scripts.sources.render import owned_functions
from scripts.symbols import Package, Symbol

Function = ast.FunctionDef | ast.AsyncFunctionDef
SURVIVORS = BANK / "survivors.toml"
AIM = 0.95
MEMORY = 3 * 2**30  # bytes a run may use: a loop that never ends may fill a list

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
}


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


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions and methods with their dotted names; abstract ones and protocols have no body to change."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, Function) and not is_abstract(child):
                    yield f"{node.name}.{child.name}", child


def is_abstract(function: Function) -> bool:
    """Whether there is nothing but a docstring or dots."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in function.body)


def mutations(tree: ast.Module, function: Function) -> Iterator[tuple[str, int, Callable[[], str]]]:
    """What is changed, on which line, and what makes the module with the change."""
    for index, (node, around) in enumerate(walk_code(function)):
        for description, change in changes(node):
            code = shown(around if isinstance(node, ast.Constant) else node)
            line = getattr(node, "lineno", function.lineno)
            yield f"{code!r} with {description}", line, partial(mutated, tree, function, index, change)


def mutated(tree: ast.Module, function: Function, index: int, change: Callable[[Any], None]) -> str:
    """The module with a change of one node of a function, the one that comes `index`-th in `walk_code`."""
    mutated_tree = copy.deepcopy(tree)
    node, _ = list(walk_code(twin_of(function, mutated_tree)))[index]
    change(node)
    return ast.unparse(ast.fix_missing_locations(mutated_tree))


def shown(node: ast.AST) -> str:
    """The code of a node on one line: of a statement the first."""
    return ast.unparse(node).strip().splitlines()[0]


def twin_of(function: Function, tree: ast.Module) -> Function:
    """The same function in a copy of its module."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (node.lineno, node.name) == (function.lineno, function.name):
            return node
    raise KeyError(function.name)


def walk_code(function: Function) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes of a body in a fixed order, without docstrings, annotations and the texts of errors.

    With each comes the node around it, which gives a number its meaning; a sign belongs to its number.
    """
    pending: list[tuple[ast.AST, ast.AST]] = [(node, function) for node in reversed(function.body)]
    while pending:
        node, around = pending.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr) or is_text(node):
            continue
        yield node, around
        annotation = getattr(node, "annotation", None)
        children = [child for child in ast.iter_child_nodes(node) if child is not annotation]
        outer = around if isinstance(node, ast.UnaryOp) else node
        pending.extend((child, outer) for child in reversed(children))


def is_text(node: ast.AST) -> bool:
    """A docstring or another statement that is a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Small changes to a node, each with what it is; applied to the node's twin in a copy of the module."""
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            new = COMPARISONS[type(operator)]
            yield f"{type(operator).__name__} to {new.__name__}", partial(set_item, "ops", position, new)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        new_operation = OPERATIONS[type(node.op)]
        yield f"{type(node.op).__name__} to {new_operation.__name__}", partial(set_field, "op", new_operation)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} to {other.__name__}", partial(set_field, "op", other)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition negated", negate
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} to {not node.value}", partial(set_value, not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} to {node.value + 1}", partial(set_value, node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
        yield "None returned", return_none
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out", return_none


def is_none(node: ast.expr) -> bool:
    """Whether it is the word None."""
    return isinstance(node, ast.Constant) and node.value is None


def set_item(field: str, position: int, kind: type[ast.AST], node: Any) -> None:
    """Replace an operator in a list of them."""
    getattr(node, field)[position] = kind()


def set_field(field: str, kind: type[ast.AST], node: Any) -> None:
    """Replace an operator."""
    setattr(node, field, kind())


def set_value(value: object, node: Any) -> None:
    """Replace a constant."""
    node.value = value


def negate(node: Any) -> None:
    """Turn a condition round."""
    node.test = ast.UnaryOp(ast.Not(), node.test)


def return_none(node: Any) -> None:
    """Return nothing, or leave a call out."""
    node.value = ast.Constant(None)


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
