"""`pdm run author NAME`: what those who change the course run."""

import os
import sys
from functools import partial

import typer

from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.group import add_later, main_of, new_group

PYTEST = ("-m", "scripts.learn.pytest_process")
SAMPLED = "--sampled"
"""Leaves out most tests that are marked `sampled`: .ci/run gives it, the nightly workflow doesn't."""
FOR_PYTEST = {"allow_extra_args": True, "ignore_unknown_options": True}

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


@app.command("test-tools", short_help="Test the commands", context_settings=FOR_PYTEST)
def test_tools(context: typer.Context) -> None:
    """Test the commands; options are pytest's, and all tests are divided among processes.

    Example: pdm run author test-tools -k compare
    """
    from scripts.learn.test import workers  # here, so that no other command waits for it

    is_whole = not {*context.args} - {SAMPLED}
    run_pytest([], "tests/tools", [*context.args, *(workers() if is_whole else [])])


@app.command("test-book", short_help="Test the book, in a browser too", context_settings=FOR_PYTEST)
def test_book(context: typer.Context) -> None:
    """Test the book, its pages in a browser too; options are pytest's.

    Example: pdm run author test-book -k links
    """
    run_pytest(["book", "pages"], "tests/book", context.args)


@app.command("test-platforms", short_help="Test what other machines would do", context_settings=FOR_PYTEST)
def test_platforms(context: typer.Context) -> None:
    """Test what other machines would do; options are pytest's.

    Example: pdm run author test-platforms --record-cuda
    """
    run_pytest(["platforms"], "tests/platforms", context.args)


@app.command(
    "test-clients", short_help="Test the server with other people's clients", context_settings=FOR_PYTEST
)
def test_clients(context: typer.Context) -> None:
    """Test the server with clients that others made and with random requests; options are pytest's.

    Example: pdm run author test-clients --cases 5000
    """
    run_pytest(["clients", "routers"], "tests/clients", context.args)


def run_pytest(groups: list[str], folder: str, arguments: list[str]) -> None:
    """Run pytest in place of this process, once the packages of these groups are installed."""
    options = [option for group in groups for option in ("--group", group)]
    if SAMPLED in arguments:
        arguments = ["-p", "scripts.author.sampled", *(each for each in arguments if each != SAMPLED)]
    command = [sys.executable, "scripts/setup.py", *options, *PYTEST, folder, "--ref", *arguments]
    os.chdir(ROOT)
    os.execv(sys.executable, command)


if __name__ == "__main__":
    with usage_errors():
        app(prog_name="pdm run author")
