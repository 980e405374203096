"""Sentences of a chapter about numbers, asserted of the output above them.

A comment `<!-- assert: row("a thread")[0] < row("steps")[0] -->` stands beside such a sentence.
"""

import re
from dataclasses import dataclass

from scripts.book.problems import ChapterError
from scripts.book.segments import Fence, Segment, Text

COMMENT = re.compile(r"<!--\s*assert:(?P<expression>.*?)-->", re.S)
NUMBER = re.compile(r"(?<![\w.])-?\d(?:[\d,]*\d)?(?:\.\d+)?")
WITH_OUTPUT = ("python", "console", "predict")


@dataclass(frozen=True)
class Assertion:
    """A Python expression that is true of an output; `line` is that of its comment in the page.

    It finds numbers with `row`.
    """

    line: int
    expression: str

    def check(self, output: str) -> None:
        """Raise ChapterError unless it is true of an output."""
        try:
            is_true = eval(self.expression, {"row": lambda *starts: row(output, *starts)})
        except Exception as error:
            raise ChapterError(f"`{self.expression}` fails: {type(error).__name__}: {error}") from None
        if not is_true:
            raise ChapterError(f"the output above does not show what the text says: {self.expression}")


def assertions_of(segments: list[Segment]) -> dict[int, list[Assertion]]:
    """The assertions below each fence with an output, by the line of the fence.

    Raises:
        ChapterError: one of them stands below no output.
    """
    found: dict[int, list[Assertion]] = {}
    fence = 0
    for segment in segments:
        if isinstance(segment, Fence):
            is_shown = segment.kind in WITH_OUTPUT and not {"bare", "shown"} & {*segment.info.split(",")}
            fence = segment.line if is_shown else fence
        elif isinstance(segment, Text):
            for comment in COMMENT.finditer(segment.text):
                line = segment.line + segment.text[: comment.start()].count("\n")
                if not fence:
                    raise ChapterError("there is no output above this assertion", line)
                expression = " ".join(comment["expression"].split())
                found.setdefault(fence, []).append(Assertion(line, expression))
    return found


def row(output: str, *starts: str) -> list[float]:
    """The numbers of a line, after the words that it starts with.

    Args:
        output: what was printed.
        starts: what the line starts with; or what an earlier line starts with, such as the title of a table,
            and then the line below it.

    Raises:
        ValueError: there is no such line.
    """
    lines, rest = iter(output.split("\n")), ""
    for start in starts:
        found = (re.match(rf"\s*{re.escape(start)}(?![\w.])(.*)", line) for line in lines)
        match = next(filter(None, found), None)
        if match is None:
            raise ValueError(f"no line starts with {' and then '.join(map(repr, starts))}")
        rest = match[1]
    return [float(number.replace(",", "")) for number in NUMBER.findall(rest)]
