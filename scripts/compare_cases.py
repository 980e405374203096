"""The cases of `pdm run compare`, where a learner gains from them: time, memory, and results of some size.

A case is a row in the table of its week:

    Case("softmax", "Along the last axis", lambda tiny: tiny.softmax(normal(67, 4096), axis=-1)),

`tiny` is the learner's package with its holes filled, or the reference, so a case may use all of it. Not
every symbol needs a case: what takes no time and no memory is the business of the tests.
"""

from functools import cache

from scripts import compare_cases_week_1, compare_cases_week_2, compare_cases_week_3
from scripts.compare_library import Case
from scripts.course import load_course

CASES: tuple[Case, ...] = (
    *compare_cases_week_1.CASES,
    *compare_cases_week_2.CASES,
    *compare_cases_week_3.CASES,
)


def cases_of(symbol: str) -> list[Case]:
    """The cases of a symbol, in the order of the table."""
    return [case for case in CASES if symbol_of(case.symbol) == symbol]


@cache
def symbol_of(ending: str) -> str:
    """The shortest symbol of the course that ends so; ValueError if there is none, or more than one."""
    symbols = {each for day in load_course().days for task in day.tasks for each in task.symbols}
    found = [each for each in symbols if f".{each}".endswith(f".{ending}")]
    least = min((each.count(".") for each in found), default=0)
    shortest = [each for each in found if each.count(".") == least]
    if len(shortest) != 1:
        raise ValueError(f"{len(shortest)} symbols of course.toml end in {ending}: {', '.join(shortest)}")
    return shortest[0]
