"""The wrong solutions that a change may concern, and a sample of the others."""

import hashlib
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from scripts.author.bank.entries import WrongSolution, bank_file
from scripts.course import ROOT, Day
from scripts.learn.dependencies import Dependencies
from scripts.packages import NAME
from scripts.sources.files import REFERENCE, read_reference

OF_ALL_DAYS = {"pdm.lock", "pyproject.toml", "scripts/sandbox.py", "tests/__init__.py"}
SHARE = 10
"""Of how many solutions that a change does not concern one is drawn."""


def solutions_since(commit: str, solutions: Collection[WrongSolution]) -> list[WrongSolution]:
    """Those of the days that what changed since a commit may concern, and a tenth of the others.

    The tenth is another one at each commit that is checked out.

    Raises:
        ValueError: git knows no such commit.
    """
    return chosen(solutions, changed_files(commit), git("rev-parse", "HEAD").strip())


def chosen(solutions: Collection[WrongSolution], changed: Collection[str], head: str) -> list[WrongSolution]:
    """The same for paths of files, as git writes them, and the hash of a commit."""
    days = concerned({solution.day for solution in solutions}, changed)
    return [each for each in solutions if each.day in days or is_drawn(each, head)]


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


def is_drawn(solution: WrongSolution, head: str) -> bool:
    """Whether a solution is in the sample of a commit."""
    return int(hashlib.sha256(f"{head} {solution.id}".encode()).hexdigest(), 16) % SHARE == 0


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
