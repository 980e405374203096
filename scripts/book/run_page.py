"""The Python of a page in the terminal, block by block, with the reference or the learner's package."""

import ast
import re

from rich.console import Console
from rich.syntax import Syntax

from scripts.book.folders import Folders
from scripts.book.problems import ChapterError
from scripts.book.segments import Fence, split_page
from scripts.book.shown import python_of
from scripts.waiting import show_progress

UNBOUND = re.compile("NameError: name '([^']+)' is not defined")


def run_page(folders: Folders, chapter: str, mine: bool) -> None:
    """Show each block of Python and run it, all in one namespace; a block that fails doesn't end it.

    Raises:
        ValueError: there is no such page, it has no such block, or some of them failed.
    """
    file = folders.src / f"{chapter}.md"
    if not file.is_file():
        raise ValueError(f"there is no page {chapter}: name it like week-1/day-1")
    try:
        fences = [each for each in split_page(file.read_text(encoding="utf-8")) if isinstance(each, Fence)]
        blocks = [python_of(fence) for fence in fences if fence.kind == "python"]
    except ChapterError as error:
        raise ValueError(f"{folders.name(file)}: {error}") from None
    codes = [code for code, is_run in blocks if code is not None and is_run]
    if not codes:
        raise ValueError(f"the page {chapter} has no Python to run")
    from scripts.book.run_fences import run, start

    console, namespace = Console(highlight=False), start(mine)
    num_stopped = 0
    unbound: dict[str, int] = {}
    for code in codes:
        console.rule(f"line {code.line}", align="left")
        console.print(Syntax(code.code, "python", background_color="default", word_wrap=True))
        show_progress("running")
        answer = run(code.code, code.line, namespace)
        if "error" in answer:
            num_stopped += 1
            sentence = answer["error"].removeprefix("NotImplementedError: ")
            name = UNBOUND.match(sentence)
            if name and name[1] in unbound:
                sentence = f"{name[1]} is missing, since the block of line {unbound[name[1]]} stopped"
            unbound |= dict.fromkeys(bound_by(code.code) - namespace.keys(), code.line)
            console.print(f"stops at line {answer['line']}: {sentence}", markup=False, style="red")
        else:
            console.print(answer["output"], markup=False, style="green", end="")
    if num_stopped:
        raise ValueError(f"{num_stopped} of {len(codes)} blocks stopped; the others ran")


def bound_by(code: str) -> set[str]:
    """The names that a block defines, imports or assigns, within its functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found
