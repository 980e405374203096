"""What the fences of a page ask for: code to run, commands to show, questions."""

import ast
from dataclasses import dataclass, field

from scripts.book.assertions import Assertion, assertions_of
from scripts.book.commands import check_command
from scripts.book.execute import Code
from scripts.book.problems import ChapterError
from scripts.book.segments import Fence, Segment, split_page

CONSOLE_OPTIONS = ("head", "tail", "fails", "bare", "stable", "chart")
PREDICT_OPTIONS = ("head", "tail", "fails")
RULE = "---"


@dataclass(frozen=True)
class Shown:
    """A command of a page; `line` counts from that of its fence.

    The assertions are true of the last command of the fence above them.
    """

    command: str
    line: int
    options: dict[str, str]
    assertions: list[Assertion] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """The two halves of a fence that asks; `line` is that of the answer, counted from the fence's."""

    text: str
    answer: str
    line: int


def question_of(fence: Fence) -> Question:
    """The halves of a predict or check-yourself fence; ChapterError without a line between them."""
    lines = fence.body.split("\n")
    if RULE not in lines:
        raise ChapterError(
            f"a {fence.kind} fence needs a line {RULE} between the question and what answers it"
        )
    at = lines.index(RULE)
    text, answer = "\n".join(lines[:at]).strip(), "\n".join(lines[at + 1 :])
    if not text or not answer.strip():
        raise ChapterError(f"a {fence.kind} fence needs a question above {RULE} and what answers it below")
    return Question(text, answer.rstrip("\n"), at + 2)


def python_of(fence: Fence) -> tuple[Code | None, bool]:
    """The Python of a fence and whether it is run; None if it has none."""
    if fence.kind == "python":
        options = fence.allow("shown", "varies", "folded")
        return Code(fence.line + 1, fence.body, "varies" in options), "shown" not in options and is_python(
            fence.body
        )
    if fence.kind == "check-yourself":
        fence.allow()
        question = question_of(fence)
        code = Code(fence.line + question.line, question.answer)
        return code, is_python(code.code)
    return None, False


def is_python(code: str) -> bool:
    """Whether Python can read it; what it cannot is refused by the formatter, with its line."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def commands_of(fence: Fence) -> list[Shown]:
    """The commands of a console or predict fence; none of another fence."""
    if fence.kind == "predict":
        options = fence.allow(*PREDICT_OPTIONS)
        question = question_of(fence)
        lines = [line for line in question.answer.split("\n") if line.strip()]
        if len(lines) != 1:
            raise ChapterError("a predict fence is answered by one command line", question.line)
        shown = [Shown(lines[0].removeprefix("$ ").strip(), question.line, options)]
    elif fence.kind == "console":
        options = fence.allow(*CONSOLE_OPTIONS)
        shown = []
        for number, line in enumerate(fence.body.split("\n"), start=1):
            if line.startswith("$ "):
                shown.append(Shown(line[2:].strip(), number, options))
            elif line.strip():
                raise ChapterError("a console fence holds commands alone, each after `$ `", number)
        if not shown:
            raise ChapterError("a console fence needs a line that starts with `$ `")
    else:
        return []
    return shown


def check_shown(shown: Shown) -> None:
    """Refuse a command that does not exist, within a longer line too."""
    try:
        if "bare" not in shown.options:
            check_command(shown.command)
            return
        for part in shown.command.replace(" | ", " && ").split(" && "):
            if "pdm run " in part:
                check_command(part[part.index("pdm run ") :])
    except ChapterError as error:
        raise ChapterError(str(error), shown.line) from None


def all_commands(page: str) -> list[Shown]:
    """Every command of a page whose output is shown, once each, with its first line in the page."""
    found: dict[str, Shown] = {}
    segments: list[Segment] = split_page(page)
    assertions = assertions_of(segments)
    for fence in segments:
        if isinstance(fence, Fence):
            shown_here = [each for each in commands_of(fence) if "bare" not in each.options]
            for shown in shown_here:
                first = Shown(shown.command, fence.line + shown.line, shown.options)
                found.setdefault(shown.command, first)
            if shown_here:
                found[shown_here[-1].command].assertions.extend(assertions.get(fence.line, ()))
    return list(found.values())
