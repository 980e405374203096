"""Which of a task's functions a test calls, and where the learner wrote them."""

import ast
import dis
import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from scripts.course import ROOT, Task
from scripts.sources.files import is_python
from tests.support.places import Place, Where, definition, in_course, statement_at

MAX_DEFINITIONS = 3


def definitions(where: Where, test: Any, line: int | None) -> tuple[list[Place], list[Place]]:
    """Where the learner wrote what a test calls at a line, or else anywhere; and all that this calls.

    Where it is one function that calls one other, the first are both. What no test names is called by what
    it does name: kernels, and parts of a larger whole. Nothing if that is not clear.
    """
    task = in_course(where)
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    function = getattr(inner, "__func__", inner)
    if not isinstance(task, Task) or not isinstance(function, FunctionType):
        return [], []
    all_places = [place for symbol in task.symbols if (place := definition(symbol))]
    if len(all_places) == 1 or not any(is_python(place.file) for place in all_places):
        return all_places[:MAX_DEFINITIONS], all_places  # no test names a function in a kernel
    known = function.__globals__
    of_line, of_test = names_at(function, line) if line else set(), names_in(function.__code__)
    direct = names_reached(of_test, known, with_helpers=False)
    for reached in (
        names_reached(of_line, known, with_helpers=False),
        names_reached(of_line, known, with_helpers=True),
        direct | names_reached(of_test, known, with_helpers=True),
    ):
        named = [symbol for symbol in task.symbols if spoken_name(symbol) in reached]
        named.sort(key=lambda symbol: spoken_name(symbol) not in direct)
        places = [place for symbol in named if (place := definition(symbol))]
        if places:
            called = [symbol for each in named for symbol in called_by(each, task) if symbol not in named]
            if len(named) == len(called) == 1:
                places += [place for symbol in called if (place := definition(symbol))]
            for symbol in (suspects := [*named]):
                suspects += [each for each in called_by(symbol, task) if each not in suspects]
            return places[:MAX_DEFINITIONS], [place for each in suspects if (place := definition(each))]
    unnamed = [place for place in all_places if not is_python(place.file)] or all_places
    return (unnamed if len(unnamed) <= MAX_DEFINITIONS else []), unnamed


def called_by(symbol: str, task: Task) -> list[str]:
    """The symbols of a task that one of them names."""
    place = definition(symbol)
    node = statement_at(place.file, place.line) if place and is_python(place.file) else None
    nodes = [*ast.walk(node or ast.Pass())]
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in nodes}
    return [other for other in task.symbols if other != symbol and spoken_name(other) in names]


def spoken_name(symbol: str) -> str:
    """What a test writes to use a symbol: for `RoPE.__call__` it is RoPE."""
    parts = symbol.split(".")
    return parts[-2] if parts[-1].startswith("__") else parts[-1]


def names_at(function: FunctionType, line: int) -> set[str]:
    """Names in the statement at a line of a function, those after a point with it."""
    nodes = [*ast.walk(statement_at(Path(function.__code__.co_filename), line) or ast.Pass())]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute)}


@cache
def names_in(code: CodeType) -> set[str]:
    """Names that a function and the functions within it use from elsewhere, those after a point with it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    names = {
        f"{'' if instruction.opname == 'LOAD_GLOBAL' else '.'}{instruction.argval}"
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")
    }
    return names.union(*inner)


def names_reached(names: set[str], known: Mapping[str, Any], with_helpers: bool) -> set[str]:
    """Names of the package among these and, if asked for, in the tests' own functions that they mean."""
    reached: set[str] = set()
    seen: set[CodeType] = set()
    waiting = [(names, known)]
    while waiting:
        names, known = waiting.pop()
        reached |= {name.lstrip(".") for name in names if name not in known}
        meant = [known[name] for name in names if name in known and is_of_the_package(known[name])]
        reached |= {getattr(value, "__name__", "") for value in meant}
        helpers = [helper for name in names if with_helpers for helper in functions_of(known.get(name))]
        new = [helper for helper in helpers if helper.__code__ not in seen and is_of_the_tests(helper)]
        seen |= {helper.__code__ for helper in new}
        waiting += [(names_in(helper.__code__), helper.__globals__) for helper in new]
    return reached


def functions_of(helper: object) -> list[FunctionType]:
    """A function without its decorators, or the methods of a class."""
    members = vars(helper).values() if isinstance(helper, type) else [helper]
    return [inspect.unwrap(member) for member in members if isinstance(member, FunctionType)]


def is_of_the_tests(function: FunctionType) -> bool:
    """Whether a function is written in the folder of the tests."""
    return ROOT / "tests" in Path(function.__code__.co_filename).parents


def is_of_the_package(value: object) -> bool:
    """Whether something was defined in the package under test."""
    return str(getattr(value, "__module__", "")).startswith("tiny_llm")
