"""Break a copy of your engine as others have been broken in production, and look for the fault."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.waiting import show_progress

if TYPE_CHECKING:
    from scripts.museum.exhibits import Exhibit
    from scripts.sandbox import Outcome, Run
    from scripts.sources.files import Sources

Name = Annotated[
    str | None, typer.Argument(help="An exhibit; without it, a list of all.", show_default=False)
]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show the fault, the report and the test.")]
TestDay = Annotated[
    str | None, typer.Option("--day", metavar="wWdD", help="Run the tests of a day on the broken engine.")
]
Reference = Annotated[bool, typer.Option("--ref", help="Break the reference instead of tiny_llm.")]


def main(
    name: Name = None, reveal: Reveal = False, day: TestDay = None, reference: Reference = False
) -> None:
    """Show a bug that got into production, in a copy of your engine: what would its user report?

    Find it by its symptoms: with --day w3d4, the tests of that day run on the broken copy. With --reveal you
    see the fault, the public report and the test that catches it. Your files stay as they are. Whatever you
    haven't written yet comes from the reference.

    Example: pdm run museum evicted
    """
    with usage_errors():
        show_progress("reading the course")
        from scripts.museum.exhibits import find_exhibit

        if name is None:
            print_list()
            return
        exhibit = find_exhibit(name)
        if reveal:
            print("\n".join(revealed(exhibit)))
            return
        sources = sources_of(exhibit, reference)
        if day is not None:
            print("\n".join(tested(exhibit, sources, day)))
            return
        print(f'"{exhibit.report}"\n')
        print(shown(exhibit, sources))
        print(f"\nWhich day is it? pdm run museum {name} --day w1d1\nGive up? pdm run museum {name} --reveal")


def print_list() -> None:
    """A line for each exhibit: its name, and what a user says."""
    from scripts.museum.exhibits import EXHIBITS

    print("Bugs that got into production. Each can break a copy of your engine: pdm run museum NAME\n")
    for exhibit in EXHIBITS:
        print(f"  {exhibit.name:10} {exhibit.report}")


def sources_of(exhibit: "Exhibit", reference: bool) -> "Sources":
    """The broken package."""
    from scripts.learn.learner import PACKAGE, check_syntax, read_package
    from scripts.museum.broken import broken_copy, broken_reference, without_shared

    if reference:
        return without_shared(broken_reference(exhibit.solution))
    own = read_package(PACKAGE)
    check_syntax(own, PACKAGE)
    return broken_copy(exhibit.solution, own)


def shown(exhibit: "Exhibit", sources: "Sources") -> str:
    """What a user sees of a package.

    Raises:
        ValueError: it cannot run.
    """
    from kernel_runtime.native import use_one_blas_thread
    from scripts.packages import importable
    from scripts.sources.files import write

    show_progress("asking the broken engine")
    use_one_blas_thread()  # the shipped model's products are small
    os.environ["TINY_LLM_KERNELS"] = "off"  # a faster operation would stand in for what is broken
    with tempfile.TemporaryDirectory() as folder:
        write(sources, Path(folder) / "tiny_llm")
        with importable(Path(folder)):
            try:
                return exhibit.scene()
            except Exception as error:
                raise ValueError(
                    f"the bug doesn't fit your package ({type(error).__name__}: {error}): "
                    "see it in the reference with --ref"
                ) from None


def tested(exhibit: "Exhibit", sources: "Sources", day: str) -> list[str]:
    """What the tests of a day, written as w3d4, say of a package."""
    from scripts.course import load_course
    from scripts.sandbox import Run

    chosen = load_course().day_called(day, "--day")
    outcome = outcome_of(Run(exhibit.name, sources, [str(chosen.test_file)], ["--tb=short"]))
    if not outcome.failed:
        return [
            f"all {len(outcome.passed)} tests of week {chosen.week} day {chosen.day} pass: look elsewhere"
        ]
    number = len(outcome.failed)
    return [
        f"{number} test{'s' * (number > 1)} of week {chosen.week} day {chosen.day} "
        f"fail{'s' * (number == 1)}, {len(outcome.passed)} pass. The first says:",
        *first_failure(outcome),
    ]


def revealed(exhibit: "Exhibit") -> list[str]:
    """The fault as a difference, the report, and what the test says that catches it."""
    from scripts.museum.broken import broken_reference

    solution = exhibit.solution
    day = solution.day
    return [
        f"The belief: {solution.misconception}",
        f"\n{solution.symbol}:",
        *(f"  {line}" for line in exhibit.fault),
        f"\nReported in {exhibit.link_text}: {solution.seen_in}",
        f"\nThe tests of week {day.week} day {day.day} task {solution.task} catch it:",
        *first_failure(outcome_of(broken_reference(solution))),
    ]


def outcome_of(run: "Run") -> "Outcome":
    """What became of the tests of a run."""
    from scripts.sandbox import run_all

    show_progress("running the tests on the broken engine")
    (outcome,) = run_all([run])
    return outcome


def first_failure(outcome: "Outcome") -> Iterator[str]:
    """The first test that failed, by its name, and its message."""
    for test, message in list(outcome.failed.items())[:1]:
        yield f"  {test.rpartition('::')[2]}"
        yield from (f"    {line}" for line in message.strip().splitlines())


if __name__ == "__main__":
    run_command(main, "museum")
