"""Examples of laws: the same in each run of the suite, others by seed, and first those that failed once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from scripts.author.laws import Examples, keep
from scripts.course import ROOT
from tests.support.laws import choose_examples, database_of, examples_in, failed_once

LAW = "tests/days/test_a.py::test_law[case]"


def examples_of(
    database: InMemoryExampleDatabase, first_seed: int = 0, holds: Callable[[int], bool] = bool
) -> list[int]:
    """The numbers that a law is tried on in a run of the suite."""
    tried = []

    @settings(max_examples=200, database=database)
    @given(st.integers(1, 10**9))
    def law(number: int) -> None:
        tried.append(number)
        assert holds(number)

    item: Any = SimpleNamespace(nodeid=LAW, obj=law)
    choose_examples(item, first_seed)
    try:
        law()
    except AssertionError:
        return tried
    assert len(tried) > 50
    return tried


def test_every_run_tries_the_same_examples_and_each_seed_others() -> None:
    first, again, other = (examples_of(database_of({}), seed) for seed in (0, 0, 1))
    assert first == again
    assert len({*first} & {*other}) < len(first) / 2


def test_what_failed_once_is_tried_first() -> None:
    found, limit = database_of({}), 10**6
    examples_of(found, holds=lambda number: number < limit)
    failing = examples_in(found, LAW)
    assert failing
    assert limit in examples_of(database_of({LAW: failing}))[:1]
    assert limit not in examples_of(database_of({"another": failing}))


def test_failing_examples_are_added_to_those_kept(tmp_path: Path) -> None:
    file = tmp_path / "failed.json"
    file.write_text("{}\n")
    keep({LAW: ["AA=="]}, file)
    keep({LAW: ["AQ==", "AA=="], "another": []}, file)
    assert failed_once(file) == {LAW: ["AA==", "AQ=="], "another": []}


def test_a_failing_report_gives_its_examples() -> None:
    found = Examples()
    for outcome, failing in (("passed", []), ("failed", ["AA=="])):
        properties = [("examples", 7), ("failing", failing)]
        found.pytest_runtest_logreport(
            pytest.TestReport(LAW, ("", 0, ""), {}, outcome, None, "call", user_properties=properties)  # type: ignore[arg-type]
        )
    assert found.num_tried == {"tests/days/test_a.py::test_law": 14}
    assert found.failing == {LAW: ["AA=="]}


def test_every_law_that_failed_once_is_in_the_suite() -> None:
    for law in failed_once():
        file, _, name = law.partition("[")[0].partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"{law}: give the examples its name"
        )


@pytest.mark.sampled(3)
def test_a_round() -> None:
    command = [sys.executable, "-m", "scripts.author", "laws", "--seed", "5", "-k", "any_pieces"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "100 examples, rounds: 1, first seed: 5; every law held"


BREAKS_A_CONTRACT = """
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import contracts


@settings(max_examples=60)
@given(st.integers(0, 50))
def test_law(number: int) -> None:
    if contracts._are_kept and number > 3:
        pytest.fail("a contract broke")
"""


def test_a_contract_that_breaks_early_breaks_again_when_the_example_is_simplified(tmp_path: Path) -> None:
    (tmp_path / "test_law.py").write_text(BREAKS_A_CONTRACT)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--ref", "--tb=short", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Failed: a contract broke" in result.stdout
    assert "_WrappedBaseException" not in result.stdout


@pytest.mark.sampled(3)
def test_words_that_no_law_has_are_an_error() -> None:
    command = [sys.executable, "-m", "scripts.author", "laws", "-k", "no_such_law"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: no law has the words 'no_such_law'")
