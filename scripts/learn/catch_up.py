"""Fill what is not written yet from the reference, up to a day, and leave what is."""

from collections.abc import Collection
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.course import Course, Gpu, load_course
from scripts.errors import usage_errors
from scripts.learn.learner import (
    PACKAGE,
    Package,
    Yes,
    change,
    check_syntax,
    functions_of_tasks,
    read_package,
    shown,
)
from scripts.learn.optional import chosen_gpu
from scripts.sources.files import Sources, Symbol, read_reference
from scripts.sources.patch import fill
from scripts.sources.render import starter_of
from scripts.sources.symbols import holes_of

To = Annotated[str, typer.Option(help="The last day to fill, as w2d3.", metavar="wWdD")]
All = Annotated[bool, typer.Option("--all", help="Fill the optional tasks too.")]


def main(to: To, fill_all: All = False, yes: Yes = False, package: Package = PACKAGE) -> None:
    """Write the reference's solution into every function that is not written yet, up to and including a day.

    Optional tasks stay as they are unless you say --all. Nothing that you wrote is touched. A helper comes
    along only if a solution, the reference's or yours, needs it; where you use its name for something else,
    it gets another, such as _rows_ref. You see the difference and are asked first, and the files as they
    were are kept in tiny_llm.backups/. With --yes you see how many lines each file gains and loses.

    Example: pdm run catch-up --to w2d1
    """
    with usage_errors():
        course = load_course()
        chosen = task_ids_up_to(course, to, None if fill_all else chosen_gpu())
        before = read_package(package)
        check_syntax(before, package)
        after = catch_up(before, course, chosen)
        if after == before:
            kind = "" if fill_all else "core "
            print(f"nothing to fill: every {kind}function up to {to} is already written in {shown(package)}")
            return
        change(package, before, after, yes)
        for name in mixed_classes(starter_of(course), before, after):
            print(f"note: {name} is now partly yours and partly the reference's; the tests say if they agree")


def task_ids_up_to(course: Course, to: str, gpu: Gpu | None = None) -> set[str]:
    """Ids of all tasks up to a day written as w2d3, or of those that are core for a GPU.

    Raises:
        ValueError: it is not written so, or there is no such day.
    """
    days = course.days[: course.days.index(course.day_called(to, "--to")) + 1]
    return {task.id for day in days for task in day.tasks if gpu is None or task.is_core(gpu)}


def catch_up(sources: Sources, course: Course, chosen: set[str]) -> Sources:
    """The package with the holes of these tasks filled.

    Raises:
        ValueError: a module is missing.
    """
    starter = starter_of(course)
    symbols = functions_of_tasks(starter, course, chosen)
    require_modules(sources, symbols)
    return fill(sources, starter, read_reference(), symbols)


def require_modules(sources: Sources, symbols: list[Symbol]) -> None:
    """Refuse a package that lacks a file, which a patch could not bring back as it was."""
    for path in sorted({path for path, _ in symbols}):
        if path not in sources:
            raise ValueError(
                f"tiny_llm/{path} is missing: bring it back with `git checkout -- tiny_llm/{path}`"
            )


def mixed_classes(starter: Sources, before: Sources, after: Sources) -> list[str]:
    """Classes some of whose methods were written before, while others are filled now."""
    return [
        owner
        for path in sorted(before)
        for owner in sorted(
            owners_of(holes_of(path, before[path]).keys() - holes_of(path, after[path]).keys())
            & owners_of(holes_of(path, starter.get(path, "")).keys() - holes_of(path, before[path]).keys())
        )
    ]


def owners_of(methods: Collection[str]) -> set[str]:
    """The classes of dotted names."""
    return {name.split(".")[0] for name in methods if "." in name}


if __name__ == "__main__":
    run_command(main, "catch-up")
