"""The cases of `pdm run compare`, where a learner gains from them: time, memory, and results of some size.

A case is a row in the table of its week:

    Case("softmax", "Along the last axis", lambda tiny: tiny.softmax(normal(67, 4096), axis=-1)),

`tiny` is the learner's package with its holes filled, or the reference, so a case may use all of it. Not
every symbol needs a case: what takes no time and no memory is the business of the tests.
"""

from scripts.compare import week_1, week_2, week_3, week_4
from scripts.compare.library import Case

CASES: tuple[Case, ...] = (*week_1.CASES, *week_2.CASES, *week_3.CASES, *week_4.CASES)


def cases_of(symbol: str) -> list[Case]:
    """The cases of a symbol of course.toml, in the order of the table."""
    return [case for case in CASES if case.is_of(symbol)]
