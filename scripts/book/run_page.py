"""The Python of a page in the terminal, block by block, with the reference or the learner's package."""

from rich.console import Console
from rich.syntax import Syntax

from scripts.book.folders import Folders
from scripts.book.problems import ChapterError
from scripts.book.segments import Fence, split_page
from scripts.book.shown import python_of
from scripts.waiting import show_progress


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
    for code in codes:
        console.rule(f"line {code.line}", align="left")
        console.print(Syntax(code.code, "python", background_color="default", word_wrap=True))
        show_progress("running")
        answer = run(code.code, code.line, namespace)
        if "error" in answer:
            num_stopped += 1
            sentence = answer["error"].removeprefix("NotImplementedError: ")
            console.print(f"stops at line {answer['line']}: {sentence}", markup=False, style="red")
        else:
            console.print(answer["output"], markup=False, style="green", end="")
    if num_stopped:
        raise ValueError(f"{num_stopped} of {len(codes)} blocks stopped; the others ran")
