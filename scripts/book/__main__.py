"""The commands of the book: serve it, build it, record what it shows, check it."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.errors import USAGE_EXIT_CODE, usage_errors
from scripts.group import new_group

if TYPE_CHECKING:
    from rich.table import Table

    from scripts.book.build import Result
    from scripts.book.page import Page

COLUMNS = ("fences run", "questions", "symbols", "commands", "formulas", "figures")

TABLE_WIDTH = 100

app = new_group()

Partial = Annotated[
    bool, typer.Option("--partial", help="Build what is there: chapters and records may be missing.")
]
Chapters = Annotated[list[str] | None, typer.Argument(help="Such as week-2/day-7; all unless given.")]
Again = Annotated[bool, typer.Option("--again", help="Run the commands that have a record, too.")]
Before = Annotated[str, typer.Option(help="With records older than this day, such as 2026-11-23.")]
Matching = Annotated[str, typer.Option(help="Only commands with these words, such as `pdm run bench`.")]
Chapter = Annotated[str, typer.Argument(help="Such as week-1/day-1.")]
Mine = Annotated[bool, typer.Option("--mine", help="Run it with tiny_llm, your own, not with the reference.")]
OnlyOutputs = Annotated[bool, typer.Option("--outputs", help="Only fences and figures, no commands.")]
Port = Annotated[int, typer.Option(help="Of the local address.")]


@app.callback(invoke_without_command=True)
def main(context: typer.Context, port: Port = 3000, partial: Partial = False) -> None:
    """Read the book in a browser: build it, serve it, build it again when something changes.

    Example: pdm run book
    """
    if context.invoked_subcommand is None:
        from scripts.book.folders import Folders  # here, since the help needs nothing of the book
        from scripts.book.serve import serve

        with usage_errors():
            serve(Folders(), port, partial, report)


@app.command("build")
def build_pages(partial: Partial = False) -> None:
    """Build pages that work from a file, in book/build/; exit code 2 if anything in the book is wrong.

    Example: pdm run book build, then open book/build/index.html
    """
    from scripts.book.build import build
    from scripts.book.folders import Folders
    from scripts.book.outputs import Outputs

    with usage_errors():
        result = build(Outputs(Folders()), partial)
        report(result)
    sys.exit(USAGE_EXIT_CODE if result.problems else 0)


@app.command()
def check(partial: Partial = False) -> None:
    """Build, run all code and compare its output with what is kept.

    Prints what each chapter holds.

    Example: pdm run book check
    """
    from rich.console import Console

    from scripts.book.build import build
    from scripts.book.folders import Folders
    from scripts.book.outputs import Mode, Outputs

    with usage_errors():
        result = build(Outputs(Folders(), Mode.COMPARE), partial)
        console = Console(highlight=False)
        console.width = max(console.width, TABLE_WIDTH)
        console.print(table_of(result.pages))
        report(result)
    sys.exit(USAGE_EXIT_CODE if result.problems else 0)


@app.command()
def record(
    chapters: Chapters = None,
    again: Again = False,
    before: Before = "",
    matching: Matching = "",
    only_outputs: OnlyOutputs = False,
) -> None:
    """Run what the chapters show the output of: fences, figures and commands that have none kept.

    Fences and figures come first, those of all chapters. Commands are only run while no other program
    computes. With --before it can be stopped at any time and run again: what was recorded meanwhile is not
    run a second time.

    Example: pdm run book record --before 2026-11-23 --matching "pdm run bench"
    """
    from scripts.book.folders import Folders
    from scripts.book.recording import keep_outputs, record_pages

    with usage_errors():
        problems = keep_outputs(Folders())
        if not only_outputs:
            problems += record_pages(Folders(), chapters or [], "9999" if again else before, matching)
        for problem in problems:
            print(problem, file=sys.stderr)
    sys.exit(USAGE_EXIT_CODE if problems else 0)


@app.command()
def run(chapter: Chapter, mine: Mine = False) -> None:
    """Run the Python of a page and show each block with its output.

    Example: pdm run book run week-1/day-1 --mine
    """
    from scripts.book.folders import Folders
    from scripts.book.run_page import run_page

    with usage_errors():
        run_page(Folders(), chapter, mine)


def report(result: "Result") -> None:
    """Print what is wrong, and what is missing."""
    for note in result.notes:
        print(f"missing: {note}", file=sys.stderr)
    for problem in result.problems:
        print(problem, file=sys.stderr)
    if result.problems:
        print(f"{len(result.problems)} faults: the book was not built", file=sys.stderr)
    else:
        print(f"{len(result.pages)} pages in book/build/", file=sys.stderr)


def table_of(pages: "list[Page]") -> "Table":
    """What each chapter holds, and the sums."""
    from rich.table import Table

    from scripts.book.shape import count_words, count_words_in_tasks

    table = Table("chapter", "words", "in tasks", *COLUMNS)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = [
        [
            count_words(page.source),
            count_words_in_tasks(page.source),
            *(page.counts[name] for name in COLUMNS),
        ]
        for page in pages
    ]
    for page, row in zip(pages, rows, strict=True):
        table.add_row(page.path.with_suffix("").as_posix(), *map(str, row))
    table.add_section()
    table.add_row("all", *(str(sum(column)) for column in zip(*rows, strict=True)))
    return table


if __name__ == "__main__":
    with usage_errors():
        app(prog_name="pdm run book")
