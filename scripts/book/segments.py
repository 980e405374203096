"""A chapter cut into fences and the text between them."""

import re
from dataclasses import dataclass

from scripts.book.problems import ChapterError

FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})[ ]*(?P<info>[^`\n]*)$")
INFO = re.compile(r"(?P<kind>[\w+-]*)(?P<options>(?:,[\w=-]+)*)$")


@dataclass(frozen=True)
class Text:
    """Lines that are in no fence; `line` is the first, counted from 1."""

    line: int
    text: str


@dataclass(frozen=True)
class Fence:
    """A fenced block; `line` is that of its opening, so its body starts at the next one."""

    line: int
    indent: str
    info: str
    body: str

    @property
    def kind(self) -> str:
        """What comes first: `python` of `python,shown`."""
        return self.info.split(",")[0].strip()

    @property
    def options(self) -> dict[str, str]:
        """What follows, with its value: {"head": "8", "fails": ""} of `console,head=8,fails`.

        Raises:
            ChapterError: they are not written like that.
        """
        if not INFO.match(self.info.strip()):
            raise ChapterError(f"`{self.info}` is not a kind of fence: write it like `console,head=8,fails`")
        pairs = (option.partition("=") for option in self.info.strip().split(",")[1:])
        return {name: value for name, _, value in pairs}

    def allow(self, *names: str) -> dict[str, str]:
        """The options, all of them among `names`; ChapterError for another."""
        options = self.options
        for name in options:
            if name not in names:
                known = f"has only {', '.join(names)}" if names else "has none"
                raise ChapterError(f"a {self.kind} fence has no option {name!r}: it {known}")
        return options


Segment = Text | Fence


def split_page(page: str) -> list[Segment]:
    """The segments of a page in order; ChapterError for a fence that does not end."""
    segments: list[Segment] = []
    text: list[str] = []
    lines = page.split("\n")
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if not opening:
            text.append(lines[number])
            number += 1
            continue
        if text:
            segments.append(Text(number - len(text) + 1, "\n".join(text)))
            text = []
        end = closing_line(lines, number, opening["mark"])
        indent = opening["indent"]
        body = "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end])
        segments.append(Fence(number + 1, indent, opening["info"].strip(), body))
        number = end + 1
    if text:
        segments.append(Text(number - len(text) + 1, "\n".join(text)))
    return segments


def closing_line(lines: list[str], start: int, mark: str) -> int:
    """The index of the line that ends the fence which starts at index `start`."""
    end = re.compile(rf"^ *{re.escape(mark[0])}{{{len(mark)},}} *$")
    for index in range(start + 1, len(lines)):
        if end.match(lines[index]):
            return index
    raise ChapterError(f"this fence has no end: close it with a line {mark}", start + 1)
