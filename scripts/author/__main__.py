"""`pdm run author NAME`: what those who change the course run."""

import os
import sys
from functools import partial
from typing import Annotated

import typer

from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.group import add_later, main_of, new_group

PYTEST = ("-m", "scripts.learn.pytest_process")
FOR_PYTEST = {"allow_extra_args": True, "ignore_unknown_options": True}
Since = Annotated[
    str | None,
    typer.Option(
        metavar="COMMIT", help="Leave out most tests marked `sampled` that no change since COMMIT concerns."
    ),
]

app = new_group()


@app.callback(no_args_is_help=True)
def main() -> None:
    """Run one of the commands for those who change the course.

    Example: pdm run author wrong --week 2 --day 7
    """


for name, module, summary in (
    ("starter", "author.starter", "Make tiny_llm/ from the reference"),
    ("states", "author.states", "Prove every state of the course"),
    ("wrong", "author.wrong", "Wrong solutions: caught, with the message kept"),
    ("right", "author.right", "Right solutions in other styles: accepted"),
    ("messages", "author.messages", "What the tests say of wrong solutions: compare or keep"),
    ("mutants", "author.mutants", "Automatic small changes that the tests must notice"),
    ("laws", "author.laws", "Fresh examples for every law of the suite"),
    ("schedules", "author.schedules", "Output invariance on many random schedules"),
    ("schemas", "author.schemas", "Structured outputs for many random JSON schemas"),
    ("invariance", "author.invariance", "Count the answers that change with the batch"),
    ("damage", "author.damage", "Damaged checkpoints, each of which must load or be refused"),
    ("try-server", "hardware.try_server", "Serve with some options, and ask what clients ask"),
    ("compare-mlx-lm", "checkpoints.compare_mlx_lm", "Greedy token ids against mlx-lm's"),
    ("record-figures", "author.record_figures", "Record the data of the book's figures"),
    ("record-life", "author.record_life", "Record which functions a request goes through"),
    ("record-page", "author.record_page", "Take the README's pictures of the server's page"),
):
    add_later(app, name, summary, partial(main_of, f"scripts.{module}"))


def add_tests(name: str, groups: list[str], summary: str, example: str) -> None:
    """Add a command that runs one of the folders of tests that the suite doesn't have."""

    def run(context: typer.Context, since: Since = None) -> None:
        run_pytest(groups, f"tests/{name}", context.args, since)

    text = f"{summary}; options are pytest's.\n\nExample: pdm run author test-{name} {example}"
    app.command(f"test-{name}", short_help=summary, help=text, context_settings=FOR_PYTEST)(run)


for name, groups, summary, example in (
    ("tools", [], "Test the commands", "-k compare"),
    ("book", ["book", "pages"], "Test the book, its pages in a browser too", "-k links"),
    ("platforms", ["platforms"], "Test what other machines would do", "--record-cuda"),
    ("clients", ["clients", "routers"], "Test the server with other people's clients", "--cases 5000"),
):
    add_tests(name, groups, summary, example)


def run_pytest(groups: list[str], folder: str, arguments: list[str], since: str | None) -> None:
    """Run pytest in place of this process, once the packages of these groups are installed.

    Whole folders that need no such packages are divided among processes.
    """
    from scripts.learn.test import workers  # here, so that no other command waits for it

    options = [option for group in groups for option in ("--group", group)]
    if not groups and not arguments:
        arguments = workers()
    if since is not None:
        arguments = ["-p", "scripts.author.sampled", "--since", since, *arguments]
    command = [sys.executable, "scripts/setup.py", *options, *PYTEST, folder, "--ref", *arguments]
    os.chdir(ROOT)
    os.execv(sys.executable, command)


if __name__ == "__main__":
    with usage_errors():
        app(prog_name="pdm run author")
