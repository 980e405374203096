"""The bank of wrong solutions is run by the test that caught each last, and by all others if need be."""

import json
import subprocess
import sys

import pytest

from scripts.course import ROOT, load_course
from scripts.wrong import load_bank

FILE = "tests/test_week_1_day_1.py"
FIRST = load_bank(load_course().days)[0].id
# A process that has not imported tiny_llm, as the command has not.
PROGRAM = """
import json
import sys
from scripts.course import load_course
from scripts.wrong import catch, load_bank

noted = json.loads(sys.argv[1])
bank = {solution.id: solution for solution in load_bank(load_course().days) if solution.id in noted}
print(json.dumps(catch(bank, {id: test for id, test in noted.items() if test})))
"""


def caught_by(note: str | None) -> str:
    """The test that catches the bank's first solution, with a note of which caught it last."""
    arguments = [sys.executable, "-c", PROGRAM, json.dumps({FIRST: note})]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    return str(json.loads(result.stdout)[FIRST])


def test_the_noted_test_catches_alone() -> None:
    test = caught_by(None)
    assert test.startswith(f"{FILE}::test_task_1_")
    assert caught_by(test) == test


@pytest.mark.parametrize("name", ["test_that_is_gone", "test_task_2_attention_equals_mlx"])
def test_a_note_that_is_out_of_date_hides_nothing(name: str) -> None:
    assert caught_by(f"{FILE}::{name}").startswith(f"{FILE}::test_task_1_")
