"""Run the bank of wrong solutions: each must be caught by the tests of its own task."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from scripts.course import ROOT, Day, load_course
from scripts.errors import usage_errors
from scripts.render import REFERENCE, read_reference
from scripts.sandbox import Outcome, Run, run_all
from scripts.setup import load_toml

BANK = ROOT / "tests" / "wrong"


@dataclass(frozen=True)
class WrongSolution:
    """A small edit of the reference, as a learner would make it."""

    day: Day
    task: int
    name: str
    misconception: str
    file: Path
    find: str
    replace: str

    @property
    def id(self) -> str:
        """Unique in the bank."""
        return f"{self.day.week}.{self.day.day}.{self.task} {self.name}"

    def run(self, reference: Mapping[Path, str]) -> Run:
        """The tests of its task on the reference with the edit, up to the first that fails.

        Raises:
            ValueError: the text to replace does not occur exactly once.
        """
        source = reference[self.file]
        if source.count(self.find) != 1:
            raise ValueError(f"{self.id}: its text occurs {source.count(self.find)} times in {self.file}")
        sources = {**reference, self.file: source.replace(self.find, self.replace)}
        return Run(self.id, sources, [str(self.day.test_file)], ["--task", str(self.task), "-x", "--tb=line"])


def load_bank(days: tuple[Day, ...]) -> list[WrongSolution]:
    """All wrong solutions of some days, in the order of the course."""
    return [solution for day in days for solution in read_day(day)]


def read_day(day: Day) -> Iterator[WrongSolution]:
    """The entries of one day's file."""
    path = BANK / f"{day.test_file.stem.removeprefix('test_')}.toml"
    for entry in load_toml(path.read_text(encoding="utf-8"))["wrong"]:
        yield WrongSolution(
            day,
            entry["task"],
            entry["name"],
            entry["misconception"],
            Path(entry["file"]),
            entry["find"],
            entry["replace"],
        )


Week = Annotated[int | None, typer.Option(help="Only this week.")]
DayNumber = Annotated[int | None, typer.Option("--day", help="Only this day of the week.")]


def main(week: Week = None, day: DayNumber = None) -> None:
    """Apply each wrong solution to the reference and demand that a test of its task fails.

    Example: pdm run wrong --week 2 --day 7
    """
    with usage_errors():
        course = load_course()
        days = course.days if week is None else course.week(week) if day is None else (course.day(week, day),)
        bank = load_bank(days)
        reference = read_reference()
        runs = [solution.run(reference) for solution in bank]
        console = Console(stderr=True)
        outcomes = list(track(run_all(runs), "wrong solutions", total=len(runs), console=console))
        survivors = sorted(outcome.name for outcome in outcomes if not is_caught(outcome))
    for name in survivors:
        print(f"not caught: {name}")
    print(f"{len(runs) - len(survivors)} of {len(runs)} wrong solutions of {REFERENCE.name} caught")
    sys.exit(1 if survivors else 0)


def is_caught(outcome: Outcome) -> bool:
    """Whether a test failed on the solution: not in the collection, and not at a hole."""
    return any(
        ("::" in name or name == "(the run)") and "is not written yet" not in message
        for name, message in outcome.failed.items()
    )


if __name__ == "__main__":
    typer.run(main)
