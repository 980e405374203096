"""Run a function as one of the commands that `pdm run` knows."""

from collections.abc import Callable
from typing import Final

import typer

MARKUP: Final = "markdown"  # joins the lines of a paragraph, so that a terminal of any width can break it


def run_command(main: Callable[..., None], name: str) -> None:
    """Run `main` with the arguments of this process; its help calls it `pdm run NAME`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    app.command()(main)
    app(prog_name=f"pdm run {name}")
