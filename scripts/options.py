"""Commands whose options are the fields of a dataclass."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

Command = Callable[..., None]


def with_options(kind: type[Any]) -> Callable[[Command], Command]:
    """Give a typer command whose first argument is a `make_options` the fields of a dataclass as options.

    `make_options()` makes the dataclass of what was typed, or raises ValueError for what does not fit.

    Args:
        kind: the dataclass. Its annotations are typer's, and each field has a default.
    """
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(kind)
        if field.default is not MISSING
    ]
    names = [parameter.name for parameter in shared]

    def decorate(command: Command) -> Command:
        def main(**values: Any) -> None:
            typed = {name: values.pop(name) for name in names}
            command(lambda: kind(**typed), **values)

        own = list(inspect.signature(command).parameters.values())[1:]
        parameters = [*shared, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own)]
        main.__doc__ = command.__doc__
        main.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        main.__annotations__ = {each.name: each.annotation for each in parameters}
        return main

    return decorate
