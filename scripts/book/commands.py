"""Commands as chapters show them: whether they exist with these options, and how to run them."""

import functools
import importlib
import re
import shlex
from typing import Any, TypeAlias

import typer
from typer.core import TyperGroup

from scripts.book.problems import ChapterError
from scripts.course import ROOT
from scripts.group import loaded
from scripts.setup import load_toml

SETTING = re.compile(r"[A-Z_][A-Z0-9_]*=\S*$")
MODULE = re.compile(r"python .*-m (?P<module>[\w.]+)$")
Command: TypeAlias = Any  # of the click that typer carries
USAGE_ERROR: Any = typer.BadParameter.__base__
OWN_OPTIONS = {"setup": {"--dev", "--group", "--help"}}  # which typer does not read


@functools.cache
def scripts() -> dict[str, str]:
    """The module of each command of pyproject.toml by the command's name; empty for one without options."""
    content = load_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {name: module_of(entry) for name, entry in content["tool"]["pdm"]["scripts"].items()}


def module_of(entry: dict[str, Any]) -> str:
    """The Python module that a script of pyproject.toml runs."""
    match = MODULE.match(entry.get("cmd", ""))
    return match["module"] if match else ""


def words_of(command: str) -> list[str]:
    """The words of `pdm run NAME ...` without the settings in front; ChapterError for anything else."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ChapterError(f"`{command}` is no command line: {error}") from None
    while words and SETTING.match(words[0]):
        words.pop(0)
    if words[:2] != ["pdm", "run"] or len(words) < 3:
        raise ChapterError(f"`{command}` does not start with `pdm run NAME`: mark the fence `console,bare`")
    if words[2] not in scripts():
        raise ChapterError(f"there is no command `pdm run {words[2]}`")
    return words[2:]


def arguments_of(command: str) -> list[str]:
    """What to give Python to run a command; ChapterError if it runs no module."""
    name, *rest = words_of(command)
    if not scripts()[name]:
        raise ChapterError(f"`pdm run {name}` cannot be recorded: mark the fence `console,bare`")
    return ["-m", scripts()[name], *rest]


@functools.cache
def command_of(name: str) -> Command | None:
    """The command with its options; None for one that has none of its own."""
    module_name = scripts()[name]
    if not module_name:
        return None
    module = importlib.import_module(module_name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module_name}.__main__")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command()(module.main)
    return typer.main.get_command(app)


def check_command(command: str) -> None:
    """Parse a whole command line as the command itself would; ChapterError for what it would refuse."""
    name, *rest = words_of(command)
    parsed = command_of(name)
    if parsed is None:
        unknown = [word for word in rest if word.startswith("-") and word not in OWN_OPTIONS.get(name, set())]
        if unknown:
            raise ChapterError(f"`pdm run {name}` has no option {unknown[0]}")
        return
    parse(parsed, name, rest)


def parse(command: Command, name: str, words: list[str]) -> None:
    """Let typer read the words without running anything."""
    try:
        with command.make_context(name, list(words)) as context:
            if not isinstance(command, TyperGroup):
                return
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            if rest:
                inner_name, inner, arguments = command.resolve_command(context, rest)
                parse(inner, f"{name} {inner_name}", arguments)
    except typer.Exit:
        return
    except USAGE_ERROR as error:
        raise ChapterError(f"`pdm run {name}` refuses this: {error.format_message().rstrip('.')}") from None
    except ValueError as error:
        raise ChapterError(str(error)) from None


def check_option_names(command: str) -> None:
    """Only whether the command and its options exist, for `--week W` and the like."""
    name, *rest = words_of(command)
    group = command_of(name)
    if (
        isinstance(group, TyperGroup)
        and rest
        and re.match("[a-z]", rest[0])
        and rest[0] not in group.commands
    ):
        raise ChapterError(f"there is no command `pdm run {name} {rest[0]}`")
    known = options_of(name)
    for word in rest[: rest.index("--")] if "--" in rest else rest:
        if word.startswith("-") and len(word) > 1 and word.split("=")[0] not in known:
            raise ChapterError(f"`pdm run {name}` has no option {word.split('=')[0]}")


def options_of(name: str) -> set[str]:
    """Every option of a command and of the commands below it."""
    command = command_of(name)
    if command is None:
        return OWN_OPTIONS.get(name, set())
    return {"--help"} | options_in(command)


def options_in(command: Command) -> set[str]:
    """The options of a click command, and of its subcommands."""
    found = {text for param in command.params for text in [*param.opts, *param.secondary_opts]}
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            found |= options_in(loaded(inner))
    return {text for text in found if text.startswith("-")}


@functools.cache
def all_options() -> frozenset[str]:
    """Every option that some command has."""
    return frozenset(option for name in scripts() for option in options_of(name))
