"""The head of a task, made from course/course.toml and the reference."""

import functools
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from scripts.book.problems import ChapterError
from scripts.book.symbols import (
    Symbol,
    find_symbol,
    is_in_starter,
    owned,
    reference,
    signature,
)
from scripts.course import Day, Task

PAGE_WIDTH = 92  # characters of code


def find_task(rest: str, day: Day | None) -> Task:
    """The task that a word names; ChapterError if the page's day has none of that number."""
    if day is None:
        raise ChapterError("only the page of a day has tasks")
    if not rest.isdigit():
        raise ChapterError(f"{{{{#task}}}} takes a number, not {rest!r}")
    try:
        return day.task(int(rest))
    except ValueError as error:
        raise ChapterError(str(error)) from None


def task_head(day: Day, task: Task) -> str:
    """Its heading, whether it is optional, and for each file what to write there."""
    parts = [f"## Task {task.number}: {task.title}", *optional_note(task)]
    symbols = [find_symbol(dotted) for dotted in task.symbols]
    for path in dict.fromkeys(symbol.path for symbol in symbols):
        here = [symbol for symbol in symbols if symbol.path == path]
        parts.append(f"Write in `tiny_llm/{path.as_posix()}`:")
        parts.append(f"```{here[0].language}\n{declarations(here, task)}\n```")
    return "\n\n".join(parts)


def optional_note(task: Task) -> list[str]:
    """Who may leave it out; nothing for a task that is core for everyone."""
    if task.gpu:
        choose = f"<code>pdm run progress --gpu {task.gpu}</code>"
        sentence = f"Core if {task.title} is the GPU you chose ({choose}), optional if not."
    elif task.optional:
        sentence = "Optional. No core task needs it."
    else:
        return []
    return [f'<p class="optional">{sentence}</p>']


def task_command(day: Day, task: Task) -> str:
    """What tests it."""
    return f"pdm run test --week {day.week} --day {day.day} --task {task.number}"


def declarations(symbols: list[Symbol], task: Task) -> str:
    """The signatures of what a task asks for in one file, methods under their class."""
    names = [name for symbol in symbols for name in asked_functions(symbol, task)]
    if symbols[0].language != "python":
        return "\n\n".join(signature(Symbol(symbols[0].path, name)) for name in names)
    return formatted(python_declarations(symbols[0].path, names))


def python_declarations(path: Path, names: list[str]) -> str:
    """The signatures of these functions of a module, apart from the width as ruff writes them."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(name.rpartition(".")[0] or name, []).append(signature(Symbol(path, name)))
    return "\n\n\n".join(
        "\n".join(texts)
        if owner in names
        else f"{class_line(path, owner)}\n" + textwrap.indent("\n".join(texts), "    ")
        for owner, texts in blocks.items()
    )


def class_line(path: Path, name: str) -> str:
    """`class Name(Base):` as the source has it."""
    match = re.search(rf"^class {name}\b.*?:$", reference()[path], re.M | re.S)
    assert match is not None
    return match[0]


@functools.cache
def formatted(code: str) -> str:
    """Python in lines as short as a page is wide."""
    if all(len(line) <= PAGE_WIDTH for line in code.split("\n")):
        return code  # starting ruff for each task would take a second or two
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, "format", "--quiet", "--line-length", str(PAGE_WIDTH), "-"]
    result = subprocess.run(command, input=code, capture_output=True, text=True, encoding="utf-8", check=True)
    return result.stdout.strip()


def asked_functions(symbol: Symbol, task: Task) -> list[str]:
    """The functions of a symbol that a task asks for and the starter has."""
    return [
        name
        for name, asking in owned(symbol.path).items()
        if asking.id == task.id
        and f"{name}.".startswith(f"{symbol.name}.")
        and is_in_starter(symbol.path, name)
    ]
