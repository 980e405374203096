"""Commands that go by a name under another one: `pdm run bench NAME`, `pdm run author NAME`."""

from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from scripts.command import MARKUP


class Group(TyperGroup):
    """Names that are misspelt get one sentence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names; ValueError if there is none."""
        if args[0] not in self.commands:
            close = get_close_matches(args[0], self.commands)
            advice = f"did you mean {' or '.join(close)}?" if close else f"see `{ctx.command_path} --help`"
            raise ValueError(f"there is no `{ctx.command_path} {args[0]}`: {advice}")
        return super().resolve_command(ctx, args)


def new_group() -> typer.Typer:
    """A command that others can be added to."""
    return typer.Typer(
        cls=Group, add_completion=False, rich_markup_mode=MARKUP, pretty_exceptions_show_locals=False
    )
