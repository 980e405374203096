"""Run the bank of wrong solutions: each must be caught by the tests of its own task."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from scripts.course import ROOT, Day, load_course
from scripts.errors import usage_errors
from scripts.render import REFERENCE, read_reference
from scripts.sandbox import Outcome, Run, run_all
from scripts.setup import load_toml

BANK = ROOT / "tests" / "wrong"
CAUGHT_BY = BANK / "caught_by.json"


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

    def run(self, reference: Mapping[Path, str], test: str | None = None) -> Run:
        """A test, or those of its task up to the first that fails, on the reference with the edit.

        Raises:
            ValueError: the text to replace does not occur exactly once.
        """
        source = reference[self.file]
        if source.count(self.find) != 1:
            raise ValueError(f"{self.id}: its text occurs {source.count(self.find)} times in {self.file}")
        sources = {**reference, self.file: source.replace(self.find, self.replace)}
        tests = [test or str(self.day.test_file)]
        return Run(self.id, sources, tests, ["--task", str(self.task), "-x", "--tb=line"])


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


Update = Annotated[bool, typer.Option("--update", help="Note which test catches which solution.")]


def main(week: Week = None, day: DayNumber = None, update: Update = False) -> None:
    """Apply each wrong solution to the reference and demand that a test of its task fails.

    The test that caught it last is run first, and all others of its task only if it does not any more.

    Example: pdm run author wrong --week 2 --day 7
    """
    with usage_errors():
        course = load_course()
        days = course.days if week is None else course.week(week) if day is None else (course.day(week, day),)
        bank = {solution.id: solution for solution in load_bank(days)}
        noted = json.loads(CAUGHT_BY.read_text(encoding="utf-8"))
        caught_by = catch(bank, {} if update else noted)
        if update:
            write_caught_by({**noted, **caught_by}, {solution.id for solution in load_bank(course.days)})
    survivors = sorted(bank.keys() - caught_by.keys())
    for name in survivors:
        print(f"not caught: {name}")
    print(f"{len(caught_by)} of {len(bank)} wrong solutions of {REFERENCE.name} caught")
    sys.exit(1 if survivors else 0)


def catch(bank: Mapping[str, WrongSolution], noted: Mapping[str, str]) -> dict[str, str]:
    """The test that catches each solution, by the solution's id; none for one that nothing catches."""
    reference = read_reference()
    caught_by = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("wrong solutions", total=len(bank))

        def try_out(runs: Iterator[Run]) -> None:
            for outcome in run_all(runs):
                if is_caught(outcome):
                    caught_by[outcome.name] = next(iter(outcome.failed))
                    progress.advance(bar)

        try_out(bank[id].run(reference, noted[id]) for id in bank if id in noted)
        try_out(bank[id].run(reference) for id in bank.keys() - caught_by.keys())
    return caught_by


def write_caught_by(caught_by: Mapping[str, str], ids: set[str]) -> None:
    """Keep which test catches which solution, of those that the bank has and that do not crash Python."""
    kept = {id: test for id, test in sorted(caught_by.items()) if id in ids and "::" in test}
    CAUGHT_BY.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_caught(outcome: Outcome) -> bool:
    """Whether a test failed on the solution: not in the collection, and not at a hole."""
    return any(
        ("::" in name or name == "(the run)") and "is not written yet" not in message
        for name, message in outcome.failed.items()
    )


if __name__ == "__main__":
    typer.run(main)
