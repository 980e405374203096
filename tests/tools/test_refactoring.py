"""Wrong solutions still fit a reference that is moved, reordered, renamed or reformatted."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from scripts.bank.entries import Solution, load_bank
from scripts.course import load_course
from scripts.sources.files import read_reference
from scripts.sources.symbols import Package
from tests.support.refactorings import moved, reformatted, reordered, with_other_variables

pytestmark = pytest.mark.sampled(3)
REFERENCE = read_reference()


@cache
def bank() -> list[Solution]:
    return load_bank(load_course().days)


@cache
def versions_now() -> dict[str, str]:
    return versions(REFERENCE)


def versions(sources: Mapping[Path, str]) -> dict[str, str]:
    """The code of each wrong solution's symbol, by the solution's id."""
    package = Package(sources)
    return {each.id: (symbol := package.find(each.symbol)) and each.edit.code(symbol) for each in bank()}


def tokens_of(code: str) -> str:
    return re.sub(r"[\s,]", "", code)


@pytest.mark.parametrize("refactor", [moved, reordered, with_other_variables, reformatted])
def test_the_bank_fits_a_refactored_reference(
    refactor: Callable[..., dict[Path, str]], tmp_path: Path
) -> None:
    changed = refactor(REFERENCE, tmp_path) if refactor is reformatted else refactor(REFERENCE)
    assert sum(changed.get(path) != source for path, source in REFERENCE.items()) > 40
    before, after = versions_now(), versions(changed)
    for name, code in before.items():
        if refactor is not reordered:
            assert tokens_of(after[name].replace("_renamed", "")) == tokens_of(code), name
        elif "class " not in code[:6]:
            assert after[name] == code, name
