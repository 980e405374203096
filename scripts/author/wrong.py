"""Run the bank of wrong solutions: each must be caught by the tests of its own task."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, track

from scripts.author.messages import (
    changes,
    message_of,
    solution_run,
    starter_runs,
    stored_messages,
)
from scripts.bank.chosen import chosen_since
from scripts.bank.entries import BANK, RIGHT, Solution, bank_file, load_bank, read_package
from scripts.bank.numbers import course_at
from scripts.bank.rebase import Rebase, package_at, rebase_file, rebase_survivors
from scripts.course import Day
from scripts.errors import usage_errors
from scripts.learn.progress import DayNumber, Week, chosen_days
from scripts.sandbox import STILL_RUNNING, Outcome, Run, run_all
from scripts.sources.files import REFERENCE

SURVIVORS = "survivors.toml"
CONSOLE = Console(stderr=True)
NO_MISCONCEPTION = ("is not written yet", "NameError", "ModuleNotFoundError", "BuildError", STILL_RUNNING)
"""What is in messages that show nothing. A learner whose test never ends reads no message at all."""

Folder = Annotated[Path, typer.Option("--bank", help="The folder with the entries.", show_default=False)]
Old = Annotated[
    str | None, typer.Option("--rebase", metavar="COMMIT", help="Carry entries over from that commit to now.")
]

Since = Annotated[
    str | None,
    typer.Option(metavar="COMMIT", help="Only a tenth of the days that no change since then concerns."),
]


def main(
    week: Week = None,
    day: DayNumber = None,
    bank: Folder = BANK,
    rebase: Old = None,
    since: Since = None,
) -> None:
    """Apply each wrong solution to the reference and demand that a test of its task fails.

    What a learner reads then must be the message in course/messages, if there is one.

    Example: pdm run author wrong --week 2 --day 7
    """
    with usage_errors():
        days = chosen_days(week, day)
        if not any(bank_file(day, bank).exists() for day in days):
            raise ValueError(f"{bank} has no entries: its files are called {bank_file(days[0], bank).name}")
        if rebase is not None:
            carry(rebase, days, bank)
        days = tuple(day for day in days if bank_file(day, bank).exists())
        solutions = load_bank(days, bank)
        if since is not None:
            solutions = chosen_since(since, solutions)
        caught, messages = catch(solutions, days)
    for solution in solutions:
        if solution.id not in caught:
            print(f"not caught: {solution.id}")
    kept = {name: text for name, text in stored_messages().items() if name in messages}
    difference = changes(kept, messages)
    if difference:
        print("\n".join([*difference, "keep these messages: pdm run author messages --update"]))
    print(f"{len(caught)} of {len(solutions)} wrong solutions of {REFERENCE.name} caught")
    sys.exit(0 if len(caught) == len(solutions) and not difference else 1)


def carry(commit: str, days: Sequence[Day], bank: Path) -> None:
    """Rewrite the entries of some days for the reference as it is; exit code 1 if some need a human."""
    way, old = Rebase(package_at(commit), read_package()), course_at(commit)
    folders = (BANK, RIGHT) if bank == BANK else (bank,)
    files = [(bank_file(day, folder), day) for day in days for folder in folders]
    files = [(path, day) for path, day in files if path.exists()]
    bar = track(files, "rebase", console=CONSOLE)
    left = [line for path, day in bar for line in rebase_file(path, day, way, old)]
    if (bank / SURVIVORS).exists():
        left += rebase_survivors(bank / SURVIVORS, way)
    print("\n".join([*left, f"{len(left)} entries need a human"]))
    sys.exit(1 if left else 0)


def catch(solutions: Sequence[Solution], days: Sequence[Day]) -> tuple[dict[str, str], dict[str, str]]:
    """Run the solutions, and the starter on each of the days. Print which run did not end, and in which test.

    Returns:
        caught: the test that catches each solution, by the solution's id; none for one that nothing catches.
        messages: the message of each run that has one in course/messages, by the name of the run.
    """
    package = read_package()
    starters = list(starter_runs(days))
    with_message = {run.name for run in starters} | stored_messages().keys()
    tasks = {solution.id: (solution.day, solution.task) for solution in solutions}
    catchers: dict[tuple[Day, int], dict[str, None]] = defaultdict(dict)  # in each task the last one first
    caught, messages = {}, {}

    def runs() -> Iterator[Run]:
        yield from starters
        for solution in solutions:
            if solution.id in with_message:
                yield solution_run(solution, package)
            else:
                yield solution.run(package, catchers[tasks[solution.id]])

    with Progress(console=CONSOLE) as progress:
        bar = progress.add_task("wrong solutions", total=len(starters) + len(solutions))
        for outcome in run_all(runs()):
            progress.advance(bar)
            if outcome.name in with_message:
                messages[outcome.name] = message_of(outcome)
            for name, message in outcome.failed.items():
                if STILL_RUNNING in message:
                    print(f"no end: {outcome.name} in {name}")
            test = catcher(outcome)
            if test is not None and outcome.name in tasks:
                caught[outcome.name] = test
                task = tasks[outcome.name]
                catchers[task] = {test: None, **catchers[task]}
    return caught, messages


def is_caught(outcome: Outcome) -> bool:
    """Whether a test failed on the solution, and not only in the collection or at a hole."""
    return catcher(outcome) is not None


def catcher(outcome: Outcome) -> str | None:
    """The test that failed on a solution for what it does; None if there is none."""
    for name, message in outcome.failed.items():
        if ("::" in name or name == "(the run)") and not any(text in message for text in NO_MISCONCEPTION):
            return name
    return None


if __name__ == "__main__":
    typer.run(main)
