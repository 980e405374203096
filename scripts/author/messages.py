"""The messages that wrong solutions and unsolved tasks get, kept so that a change of one is seen."""

import difflib
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from textwrap import dedent, indent
from typing import Annotated

import typer

from scripts.bank.entries import Solution, load_bank, read_package
from scripts.course import COURSE, Day, load_course
from scripts.errors import usage_errors
from scripts.sandbox import Outcome, Run, run_all
from scripts.sources.render import render
from scripts.sources.symbols import Package

FOLDER = COURSE / "messages"
DECIMAL = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")
VARYING = {
    r"^  tiny_llm/\S*(\.\w+):\d+$": r"  tiny_llm/FILE\1:LINE",
    r"^  tests/\S*?([^/\s]+):\d+$": r"  tests/\1:LINE",
    r"^(  tiny_llm/.*\n      (?:def|class) \w+).*": r"\1",
    r"^(  tiny_llm/.*\n)      (?!def |class ).*": r"\1      CODE",
    r"in line \d+": "in line N",
    r"0x[0-9a-f]+": "0xADDRESS",
    r"\d+ bytes": "SOME bytes",
}
"""What differs from machine to machine or with an edit of the reference, and what stands for it."""


def solution_run(solution: Solution, package: Package) -> Run:
    """The tests of its task in their order, with what a learner reads of the first that fails."""
    return replace(solution.run(package), pytest_options=["--task", str(solution.task), "-x"])


def starter_runs(days: Sequence[Day]) -> Iterator[Run]:
    """The first task of each day unsolved."""
    starter = render(())
    for day in days:
        yield Run(f"{day.tasks[0].id} starter", starter, [str(day.test_file)], ["--task", "1", "-x"])


def message_of(outcome: Outcome) -> str:
    """The message of the first test that failed, without what varies."""
    return normalize(next(iter(outcome.failed.values()), "no test failed"))


def current_messages() -> dict[str, str]:
    """The message of each day's first task, and of each wrong solution that has one kept, by its heading."""
    days = load_course().days
    kept, package = stored_messages(), read_package()
    solutions = {solution.id: solution for solution in load_bank(days)}
    runs = [*starter_runs(days)]
    gone = kept.keys() - solutions.keys() - {run.name for run in runs}
    if gone:
        raise ValueError(f"no wrong solution has the message {', '.join(sorted(gone))}: remove its section")
    runs += [solution_run(solutions[name], package) for name in kept.keys() & solutions.keys()]
    return {outcome.name: message_of(outcome) for outcome in run_all(runs)}


def normalize(message: str) -> str:
    """A message without what varies."""
    for pattern, name in VARYING.items():
        message = re.sub(pattern, name, message, flags=re.MULTILINE)
    return message.rstrip()


def stored_messages(folder: Path = FOLDER) -> dict[str, str]:
    """The messages as kept, by the headings above them."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md")))
    sections = [section.partition("\n") for section in re.split("^## ", text, flags=re.MULTILINE)[1:]]
    return {name: dedent(lines).strip("\n") for name, _, lines in sections}


def changes(stored: dict[str, str], current: dict[str, str]) -> list[str]:
    """The lines of a diff, message by message."""
    return [
        line
        for name in sorted({*stored, *current})
        if not are_alike(stored.get(name, ""), current.get(name, ""))
        for line in difflib.unified_diff(
            stored.get(name, "").splitlines(),
            current.get(name, "").splitlines(),
            f"{name} as kept",
            f"{name} now",
            lineterm="",
        )
    ]


def are_alike(kept: str, now: str) -> bool:
    """Whether two messages differ in nothing but the last digits of decimals, which depend on the BLAS."""
    pairs = zip(DECIMAL.findall(kept), DECIMAL.findall(now), strict=False)
    return DECIMAL.sub("DECIMAL", kept) == DECIMAL.sub("DECIMAL", now) and all(
        math.isclose(float(left), float(right), rel_tol=0.01) for left, right in pairs
    )


def rewrite(current: dict[str, str], folder: Path = FOLDER) -> None:
    """Make the files those of these messages: each a section of Markdown, in the file of its day."""
    for path in folder.glob("*.md"):
        path.unlink()
    for day, names in groupby(sorted(current), lambda name: name.split(".")[:2]):
        sections = [f"## {name}\n\n{indent(current[name], '    ')}\n" for name in names]
        (folder / "week_{}_day_{}.md".format(*day)).write_text("\n".join(sections), encoding="utf-8")


Update = Annotated[bool, typer.Option("--update", help="Keep the messages as they are now.")]


def main(update: Update = False) -> None:
    """Compare the messages of wrong solutions with those kept in course/messages, as `wrong` does too.

    To keep one more, add a heading with the solution's id, such as `## 1.1.2 no-scale`, to the file of its
    day, and run this with --update.

    Example: pdm run author messages --update
    """
    start = time.perf_counter()
    with usage_errors():
        current = current_messages()
    difference = changes(stored_messages(), current)
    print("\n".join(difference), end="\n" if difference else "")
    if update:
        rewrite(current)
    verb = "rewritten" if update else "compared"
    print(f"{len(current)} messages {verb} in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    sys.exit(1 if difference and not update else 0)


if __name__ == "__main__":
    typer.run(main)
