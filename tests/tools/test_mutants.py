"""Automatic mutants: each made once, under an id that outlives moved lines, and excused with a reason."""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from scripts.author.mutants import (
    SURVIVORS,
    Mutant,
    all_mutants,
    known_survivors,
    list_mistakes,
    present_id,
)
from scripts.author.mutations import functions, mutations
from scripts.course import ROOT
from scripts.setup import load_toml
from scripts.sources.files import read_reference
from scripts.sources.symbols import Package
from tests.support.refactorings import with_other_variables

REFERENCE = read_reference()
MUTANTS = {mutant.id: mutant for mutant in all_mutants(REFERENCE)}
LAYER_NORM = Package(REFERENCE).find("RMSNorm").path
SAMPLE = '''
def f(x: int = 3) -> int:
    """Text."""
    if x < 0:
        raise ValueError(f"{x - 1} is less than {0}")
    count: int = 0 + 0
    print(x)
    return None if x is None else x * -2
'''


def made_of(source: str) -> list[tuple[str, str]]:
    """Each change to a module's functions, and the module with it."""
    tree = ast.parse(source)
    return [
        (description, make())
        for _, function in functions(tree)
        for description, _, make in mutations(tree, function)
    ]


def test_each_change_says_what_it_does() -> None:
    assert [description for description, _ in made_of(SAMPLE)] == [
        "'if x < 0:' with condition negated",
        "'x < 0' with Lt to LtE",
        "'x < 0' with 0 to 1",
        "'0 + 0' with Add to Sub",
        "'0 + 0' with 0 to 1",
        "'0 + 0' with 0 to 1",
        "'print(x)' with call left out",
        "'return None if x is None else x * -2' with None returned",
        "'None if x is None else x * -2' with condition negated",
        "'x is None' with Is to IsNot",
        "'x * -2' with Mult to Div",
        "'x * -2' with 2 to 3",
    ]


def test_each_mutant_has_one_changed_line() -> None:
    original = ast.unparse(ast.parse(SAMPLE)).splitlines()
    for description, mutated in made_of(SAMPLE):
        pairs = zip(original, mutated.splitlines(), strict=True)
        assert sum(before != after for before, after in pairs) == 1, description


def test_what_returns_none_is_no_mutant_of_itself() -> None:
    assert made_of("def f(x):\n    return None\n") == []


def test_ids_are_unique() -> None:
    repeated = [name for name, count in Counter(m.id for m in all_mutants(REFERENCE)).items() if count > 1]
    assert repeated == []


def test_an_equal_change_further_down_has_a_number() -> None:
    reserve = "_Buffer.reserve: '(0, num_new)' with 0 to 1"
    first, second = MUTANTS[reserve], MUTANTS[f"{reserve} #2"]
    assert first.line < second.line
    assert first.source() != second.source()


def test_ids_stay_when_lines_move() -> None:
    moved = {LAYER_NORM: "\n# Two lines more.\n" + REFERENCE[LAYER_NORM]}
    for mutant in all_mutants(moved):
        assert mutant.line == MUTANTS[mutant.id].line + 2


@pytest.mark.parametrize(
    ("symbol", "days"),
    [
        ("silu", [(1, 4)]),
        ("_check_pair", [(2, 1), (2, 6)]),
        ("token_id", [(1, 6), (1, 7), (2, 1), (2, 6), (2, 7)]),
    ],
)
def test_a_helper_is_tested_by_the_days_that_use_it(symbol: str, days: list[tuple[int, int]]) -> None:
    mutants = [mutant for name, mutant in MUTANTS.items() if name.startswith(f"{symbol}:")]
    assert mutants
    assert {tuple((day.week, day.day) for day in mutant.days) for mutant in mutants} == {tuple(days)}


def test_every_listed_survivor_is_a_mutant() -> None:
    assert sorted(set(known_survivors()) - set(MUTANTS)) == []


@pytest.mark.sampled(3)
def test_listed_survivors_outlive_new_names_of_all_variables() -> None:
    mutants = defaultdict(list)
    for mutant in all_mutants(with_other_variables(REFERENCE)):
        mutants[mutant.id.partition(": ")[0]].append(mutant)
    for known in known_survivors():
        of_symbol = mutants[known.partition(": ")[0]]
        found = present_id(known, of_symbol)
        assert found.replace("_renamed", "") == known
        assert any(mutant.id == found for mutant in of_symbol)


def test_another_mutant_does_not_stand_for_a_listed_one() -> None:
    made = [replace(next(iter(MUTANTS.values())), id="silu: 'x < 3' with Lt to LtE")]
    for other in (
        "silu: 'x < 4' with Lt to LtE",
        "silu: 'x < 3' with 3 to 4",
        "relu: 'x < 3' with Lt to LtE",
    ):
        assert present_id(other, made) == other


def test_survivors_are_listed_once_and_in_order() -> None:
    entries = load_toml(SURVIVORS.read_text(encoding="utf-8"))["survivor"]
    names = [entry["id"] for entry in entries]
    assert names == sorted(set(names))


def test_every_listed_survivor_has_a_reason() -> None:
    for name, reason in known_survivors().items():
        assert reason.strip().endswith("."), f"{name} has no sentence as its reason: {reason!r}"


def mutants_named(*names: str) -> list[Mutant]:
    return [replace(next(iter(MUTANTS.values())), id=name) for name in names]


def test_a_listed_survivor_that_is_not_made_is_stale() -> None:
    (sentence,) = list_mistakes(["gone", "alive"], mutants_named("alive"), mutants_named("alive"), ["alive"])
    assert sentence.startswith("stale")
    assert sentence.endswith("gone")


def test_a_listed_survivor_that_a_test_catches_is_stale() -> None:
    (sentence,) = list_mistakes(
        ["alive", "caught"], both := mutants_named("alive", "caught"), both, ["alive"]
    )
    assert sentence.startswith("stale")
    assert sentence.endswith("caught")


def test_a_listed_survivor_that_was_not_tried_is_no_mistake() -> None:
    assert list(list_mistakes(["alive"], mutants_named("alive"), [], [])) == []


@pytest.mark.sampled(4)
def test_small_mutants_are_caught() -> None:
    command = [sys.executable, "-m", "scripts.author.mutants", "--module", "embedding"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    num_mutants = sum(mutant.symbol.path.stem == "embedding" for mutant in MUTANTS.values())
    assert result.stdout.startswith(f"{num_mutants} of {num_mutants} mutants caught, 100.0%, in ")
    assert result.returncode == 0
