"""Mutate the reference automatically, one small change at a time, and see which changes no test notices."""

import ast
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from scripts.course import ROOT, Day, load_course
from scripts.errors import usage_errors
from scripts.render import Function, owners, read_reference
from scripts.sandbox import Run, run_all
from scripts.setup import load_toml
from scripts.wrong import is_caught

SURVIVORS = ROOT / "tests" / "wrong" / "survivors.toml"
AIM = 0.95

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
    """The package with one node of one function changed."""

    id: str
    file: Path
    source: str
    days: tuple[Day, ...]

    def run(self, reference: dict[Path, str]) -> Run:
        """The tests of the days that ask for the function, up to the first that fails."""
        tests = [str(day.test_file) for day in self.days]
        return Run(self.id, {**reference, self.file: self.source}, tests, ["-x", "--tb=line"])


def all_mutants(reference: dict[Path, str]) -> Iterator[Mutant]:
    """Every mutant of every function that a task asks for, private helpers of its module included."""
    tasks = [(day, task) for day in load_course().days for task in day.tasks]
    for file, source in reference.items():
        module = ".".join(file.with_suffix("").parts)
        tree = ast.parse(source)
        owned = owners(tree, module, tasks)
        days_of_module = tuple(sorted({day for _, day, _ in owned.values()}))
        if not days_of_module:
            continue
        for path, function in functions(tree):
            days = (owned[path][1],) if path in owned else days_of_module
            for number, (description, mutated) in enumerate(mutations(tree, function)):
                yield Mutant(f"{module}.{path} {number}: {description}", file, mutated, days)


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


def mutations(tree: ast.Module, function: Function) -> Iterator[tuple[str, str]]:
    """What was changed, and the whole module with the change."""
    for index, node in enumerate(list(walk_code(function))):
        for description, change in changes(node):
            mutated_tree = copy.deepcopy(tree)
            twin = twin_of(function, mutated_tree)
            change(list(walk_code(twin))[index])
            yield (
                f"line {getattr(node, 'lineno', '?')}, {description}",
                ast.unparse(ast.fix_missing_locations(mutated_tree)),
            )


def twin_of(function: Function, tree: ast.Module) -> Function:
    """The same function in a copy of its module."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (node.lineno, node.name) == (function.lineno, function.name):
            return node
    raise KeyError(function.name)


def walk_code(function: Function) -> Iterator[ast.AST]:
    """Nodes of a body in a fixed order, without docstrings, annotations and the texts of errors."""
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr) or is_text(node):
            continue
        yield node
        annotation = getattr(node, "annotation", None)
        children = [child for child in ast.iter_child_nodes(node) if child is not annotation]
        pending.extend(reversed(children))


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
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "returns None", return_none
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out", return_none


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

    Example: pdm run mutants --module sampler
    """
    with usage_errors():
        reference = read_reference()
        mutants = [each for each in all_mutants(reference) if module in (None, each.file.stem)]
        if not mutants:
            raise ValueError(f"there is no module {module!r} that a task asks for")
        if sample is not None:
            mutants = Random(seed).sample(mutants, min(sample, len(mutants)))
        runs = (mutant.run(reference) for mutant in mutants)
        outcomes = track(run_all(runs), "mutants", total=len(mutants), console=Console(stderr=True))
        known = known_survivors()
        survivors = sorted(
            outcome.name for outcome in outcomes if not is_caught(outcome) and not outcome.exit_code
        )
    for name in survivors:
        print(f"not caught: {name}{' (' + known[name] + ')' if name in known else ''}")
    share = 1 - len(survivors) / len(mutants)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants caught, {share:.1%}")
    sys.exit(0 if share >= AIM else 1)


def known_survivors() -> dict[str, str]:
    """Reasons of the survivors that were looked at, by the mutant's id."""
    if not SURVIVORS.exists():
        return {}
    entries = load_toml(SURVIVORS.read_text(encoding="utf-8"))["survivor"]
    return {entry["id"]: entry["reason"] for entry in entries}


if __name__ == "__main__":
    typer.run(main)
