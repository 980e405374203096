"""What may stand within text: code, formulas, words of the preprocessor, comments."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from scripts.book.problems import ChapterError

TOKEN = re.compile(
    r"""
    (?P<comment> <!--.*?--> )
  | (?P<escape> \\[$`{\\] )
  | (?P<code> (?P<ticks>`+)(?!`) (?P<inside>(?:(?!\n\n).)+?) (?<!`)(?P=ticks)(?!`) )
  | (?P<word> \{\{\#.*?\}\} )
  | (?P<display> \$\$ (?P<shown>(?:(?!\n\n).)+?) \$\$ )
  | (?P<math> \$(?=[^\s$]) (?P<formula>(?:\\.|(?!\n\n)[^$\\])+?) (?<!\s)\$(?!\d) (?P<after>[.,;:]?) )
  | (?P<open> \{\{\# | \$ | <!-- )
    """,
    re.S | re.X,
)
UNBROKEN = 16  # characters of TeX
WORD = re.compile(r"\{\{#(?P<name>[\w-]+)\s*(?P<rest>.*?)\s*\}\}", re.S)


@dataclass(frozen=True)
class Handlers:
    """What becomes of each; all take its text and its line, and may raise ValueError."""

    word: Callable[[str, str, int], str]
    math: Callable[[str, bool, int], str]
    code: Callable[[str, int], None]
    comment: Callable[[str, int], None]
    failed: Callable[[int, Exception], None]


def replace_inline(text: str, line: int, handlers: Handlers) -> str:
    """The text with its words and formulas replaced and its comments taken out.

    Args:
        text: Markdown without fences.
        line: that of its first line, counted from 1.
        handlers: what becomes of each part; a failure is told to `failed`, and nothing stands in its place.
    """

    def replacement(match: re.Match[str]) -> str:
        at = line + text.count("\n", 0, match.start())
        try:
            return replace_one(match, at, handlers)
        except ValueError as error:
            handlers.failed(at, error)
            return ""

    return TOKEN.sub(replacement, text)


def replace_one(match: re.Match[str], line: int, handlers: Handlers) -> str:
    """What stands in the place of one match."""
    kind = match.lastgroup  # of nested groups the outer one, which closes last
    if kind == "comment":
        handlers.comment(match[0], line)
        return ""
    if kind == "word":
        return replace_word(match, line, handlers)
    if kind == "display":
        return handlers.math(match["shown"].strip(), True, line)
    if kind == "math":
        return unbroken(handlers.math(match["formula"], False, line), match)
    if kind == "open":
        raise ChapterError(unclosed(match[0]))
    if kind == "code":
        handlers.code(match["inside"].strip(), line)
    return match[0]


def unbroken(html: str, match: re.Match[str]) -> str:
    """A formula and the punctuation after it, on one line if the formula is short."""
    html += match["after"]
    return f'<span class="unbroken">{html}</span>' if len(match["formula"]) <= UNBROKEN else html


def replace_word(match: re.Match[str], line: int, handlers: Handlers) -> str:
    """What a word becomes, which must stand on lines of its own."""
    before = match.string[: match.start()].rpartition("\n")[2]
    after = match.string[match.end() :].partition("\n")[0]
    if before.strip() or after.strip():
        raise ChapterError(f"{shortened(match[0])} must stand on a line of its own")
    word = WORD.fullmatch(match[0])
    if not word:
        raise ChapterError(f"{shortened(match[0])} names no word")
    return "\n" + handlers.word(word["name"], word["rest"], line) + "\n"


def unclosed(text: str) -> str:
    """The sentence about something that is opened and not closed."""
    if text == "$":
        return "a dollar sign without its partner: end the formula, or write \\$ for the sign"
    return f"{text} is never closed"


def shortened(text: str) -> str:
    """At most the first 40 characters."""
    return text if len(text) <= 40 else text[:37] + "..."
