"""Run the bank of right solutions: the tests of its task must accept each, whatever its style."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from scripts.author.messages import message_of, solution_run
from scripts.author.wrong import Folder
from scripts.bank.chosen import drawn_of_each_week, git
from scripts.bank.entries import RIGHT, load_bank, read_package
from scripts.errors import usage_errors
from scripts.learn.progress import DayNumber, Week, chosen_days
from scripts.sandbox import run_all
from scripts.sources.files import REFERENCE

PER_WEEK = 2
Sampled = Annotated[
    bool, typer.Option("--sampled", help=f"Only {PER_WEEK} of each week, other ones at each commit.")
]


def main(week: Week = None, day: DayNumber = None, bank: Folder = RIGHT, sampled: Sampled = False) -> None:
    """Apply each right solution to the reference and demand that all tests of its task pass.

    Example: pdm run author right --week 1 --day 7
    """
    with usage_errors():
        solutions = load_bank(chosen_days(week, day), bank)
        if sampled:
            solutions = drawn_of_each_week(solutions, PER_WEEK, git("rev-parse", "HEAD"))
        package = read_package()
        runs = [solution_run(solution, package) for solution in solutions]
        outcomes = list(track(run_all(runs), "right solutions", len(runs), console=Console(stderr=True)))
    refused = [outcome for outcome in outcomes if outcome.exit_code or not outcome.passed]
    for outcome in refused:
        print(f"not accepted: {outcome.name}\n{message_of(outcome)}\n")
    print(f"{len(runs) - len(refused)} of {len(runs)} right solutions of {REFERENCE.name} accepted")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    typer.run(main)
