"""The solutions and states that a change may concern, and a sample of the others."""

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from scripts.bank.entries import bank_file
from scripts.course import ROOT, Day
from scripts.learn.dependencies import Dependencies
from scripts.packages import NAME
from scripts.sources.files import REFERENCE, read_reference

OF_ALL_DAYS = {"pdm.lock", "pyproject.toml", "scripts/sandbox.py", "tests/__init__.py"}
SHARE = 10
"""Of how many that a change does not concern one is drawn."""


class OfDay(Protocol):
    """What is run on the tests of a day."""

    @property
    def id(self) -> str: ...

    @property
    def day(self) -> Day: ...


Run = TypeVar("Run", bound=OfDay)


def chosen_since(commit: str, runs: Collection[Run], of_all_days: Collection[str] = ()) -> list[Run]:
    """Those of the days that what changed since a commit may concern, and a tenth of the others.

    The tenth is another one at each commit that is checked out.

    Args:
        of_all_days: files that concern every day, besides those that the tests of all days need.

    Raises:
        ValueError: git knows no such commit.
    """
    return chosen(runs, changed_files(commit), git("rev-parse", "HEAD").strip(), of_all_days)


def chosen(
    runs: Collection[Run], changed: Collection[str], head: str, of_all_days: Collection[str] = ()
) -> list[Run]:
    """The same for paths of files, as git writes them, and the hash of a commit."""
    days = {run.day for run in runs}
    if not {*of_all_days} & {*changed}:
        days = concerned(days, changed)
    return [run for run in runs if run.day in days or is_drawn(run.id, head)]


def drawn_of_each_week(runs: Iterable[Run], count: int, head: str) -> list[Run]:
    """So many of each week, other ones at each commit."""
    weeks: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: draw(run.id, head)):
        weeks[run.day.week].append(run)
    return [run for drawn in weeks.values() for run in drawn[:count]]


def concerned(days: Iterable[Day], changed: Collection[str]) -> set[Day]:
    """The days whose entries, messages, tests, or whatever the tests import are among changed files."""
    dependencies = Dependencies(read_reference())
    if (OF_ALL_DAYS | dependencies.reached_from(["tests/conftest.py"])) & {*changed}:
        return {*days}
    renamed = {path.replace(f"{REFERENCE.name}/", f"{NAME}/", 1) for path in changed}
    found = set()
    for day in days:
        tests = day.test_file.relative_to(ROOT).as_posix()
        files = dependencies.files(day) | dependencies.reached_from([tests])
        files.add(bank_file(day).relative_to(ROOT).as_posix())
        files.add(f"course/messages/{day.stem}.md")
        if files & renamed:
            found.add(day)
    return found


def is_drawn(id: str, head: str, share: int = SHARE) -> bool:
    """Whether something is among the one of `share` that the sample of a commit has."""
    return draw(id, head) % share == 0


def draw(id: str, head: str) -> int:
    """A large number that is another one for each commit."""
    return int(hashlib.sha256(f"{head} {id}".encode()).hexdigest(), 16)


def changed_files(commit: str) -> set[str]:
    """Paths of the files that differ from a commit's, those that git does not know yet included."""
    listed = git("diff", "--name-only", commit, "--") + git("ls-files", "--others", "--exclude-standard")
    return {Path(line).as_posix() for line in listed.splitlines()}


def git(*arguments: str) -> str:
    """What git prints.

    Raises:
        ValueError: it failed, with its reason.
    """
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise ValueError(f"git {' '.join(arguments)} failed: {result.stderr.strip().splitlines()[0]}")
    return result.stdout
