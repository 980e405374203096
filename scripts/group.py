"""Commands that go by a name under another one: `pdm run bench NAME`, `pdm run author NAME`."""

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from scripts.command import MARKUP
from scripts.options import Command


class Group(TyperGroup):
    """Names that are misspelt get one sentence, and only the command that is run is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names; ValueError if there is none."""
        if args[0] not in self.commands:
            close = get_close_matches(args[0], self.commands)
            advice = f"did you mean {' or '.join(close)}?" if close else f"see `{ctx.command_path} --help`"
            raise ValueError(f"there is no `{ctx.command_path} {args[0]}`: {advice}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, loaded(command), rest


def new_group() -> typer.Typer:
    """A command that others can be added to."""
    return typer.Typer(
        cls=Group, add_completion=False, rich_markup_mode=MARKUP, pretty_exceptions_show_locals=False
    )


def add_later(app: typer.Typer, name: str, summary: str, load: Callable[[], Command]) -> None:
    """Add a command of which only the summary is there until it is run: the rest takes long to import."""

    def later() -> None:
        """Stand for the command in the list."""

    later.load = load  # type: ignore[attr-defined]
    app.command(name, short_help=summary)(later)


def loaded(command: Any) -> Any:
    """A command of a group with its options."""
    load = getattr(command.callback, "load", None)
    if load is None:
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    app.command(command.name, short_help=command.short_help)(load())
    return typer.main.get_command(app)


def main_of(module: str) -> Command:
    """The `main` of a module."""
    command: Command = importlib.import_module(module).main
    return command
