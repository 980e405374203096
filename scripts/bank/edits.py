"""Edits of a definition: applied, and made from two versions of it, safe from renamed variables."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from scripts.bank.matching import find_matches, rename, substitute
from scripts.sources.symbols import Symbol
from scripts.sources.tokens import Token, canonical, local_names, tokens

MIN_TOKENS = 3  # of a fragment: a reader should see what it means


@dataclass(frozen=True)
class Edit:
    """What becomes of a symbol.

    Either `body` is its whole new definition, or `replace` takes the place of `find` in it. A fragment `near`
    elsewhere in the symbol says which of its local variables `replace` means.
    """

    find: str = ""
    replace: str = ""
    near: str = ""
    body: str = ""

    def code(self, symbol: Symbol) -> str:
        """What becomes of the symbol.

        Raises:
            ValueError: the place to change is not there, or is there more than once.
        """
        if self.body:
            return canonical(self.body, symbol.is_python)
        matches = find_matches(symbol.code, self.find, self.near, symbol.is_python)
        if len(matches) != 1:
            raise ValueError(f"`find` matches {len(matches)} times in {symbol.key}")
        return canonical(
            substitute(symbol.code, matches[0], self.replace, symbol.is_python), symbol.is_python
        )

    def in_words_of(self, symbol: Symbol) -> "Edit":
        """The same edit with the names that the symbol's local variables have now."""
        matches = find_matches(symbol.code, self.find, self.near, symbol.is_python) if self.find else []
        if len(matches) != 1:
            return self
        texts = (self.find, self.replace, self.near)
        return Edit(*(rename(text, matches[0].names, symbol.is_python) for text in texts))


def make_edit(before: str, after: str, is_python: bool) -> Edit:
    """The smallest edit by lines from one definition to another, both as `canonical` writes them.

    It has as many lines around the change as it takes to fit once, and still to fit when all local variables
    are renamed.
    """
    left, right = before.split("\n"), after.split("\n")
    start = num_equal(left, right)
    rest = num_equal(left[start:][::-1], right[start:][::-1])
    windows = [(first, last) for first in range(start + 1) for last in range(len(left) - rest, len(left) + 1)]
    for first, last in sorted(windows, key=lambda window: window[1] - window[0]):
        find, instead = cut(left[first:last]), cut(right[first : last + len(right) - len(left)])
        if last - first < len(left) and find and instead is not None:
            edit = Edit(find, instead)
            if fits(before, after, edit, is_python):
                return edit
    return Edit(body=after)


def num_equal(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines two sequences share at their beginnings."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def cut(lines: Sequence[str]) -> str | None:
    """Some lines without the first one's indent; None if another has less."""
    indent = re.match(" *", "".join(lines[:1]))[0]  # type: ignore[index]
    if any(line.strip() and not line.startswith(indent) for line in lines):
        return None
    return "\n".join(line.removeprefix(indent) for line in lines)


def fits(before: str, after: str, edit: Edit, is_python: bool) -> bool:
    """Whether an edit is readable, shows every variable that it uses, fits once and makes `after`."""
    variables, found = local_names(before, is_python), tokens(edit.find, is_python)
    missing = names_of(tokens(edit.replace, is_python)) & variables - names_of(found)
    matches = find_matches(before, edit.find, "", is_python, renamed=variables)
    if missing or len(found) < MIN_TOKENS or len(matches) != 1:
        return False
    made = canonical(substitute(before, matches[0], edit.replace, is_python), is_python)
    return texts(made, is_python) == texts(after, is_python)


def names_of(found: Sequence[Token]) -> set[str]:
    """The names among tokens that may be variables."""
    return {token.text for token in found if token.is_name}


def texts(code: str, is_python: bool) -> list[str]:
    """The tokens' texts."""
    return [token.text for token in tokens(code, is_python)]


def toml_text(text: str) -> str:
    """A string of TOML."""
    if "'''" in text or text.endswith("'"):
        return json.dumps(text, ensure_ascii=False)
    if "\n" in text:
        return f"'''\n{text}'''"
    return f"'''{text}'''" if "'" in text else f"'{text}'"
