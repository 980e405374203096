"""The smallest edit that makes one version of a definition into another, safe from renamed variables."""

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from scripts.author.bank.matching import find_matches, substitute
from scripts.sources.symbols import Symbol
from scripts.sources.tokens import Token, canonical, local_names, tokens

MAX_NEAR = 20  # fragments that are tried
MIN_TOKENS = 3  # of a fragment: a reader should see what it means
MAX_COST = 1.5  # of an edit, in lengths of the definition; beyond it the definition is written as a whole


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

    @property
    def cost(self) -> int:
        """Characters to read."""
        return len(self.find) + len(self.replace) + 2 * len(self.near)

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


def make_edit(before: str, after: str, is_python: bool) -> Edit:
    """The cheapest edit from one definition to another, both as `canonical` writes them.

    It still fits when all local variables are renamed.
    """
    left, right = tokens(before, is_python), tokens(after, is_python)
    start = num_equal(left, right)
    rest = num_equal(left[start:][::-1], right[start:][::-1])
    parts = list(readable_parts(before, left, is_python))
    edits = []
    for first, last in parts:
        if first <= start and last >= len(left) - rest and last - first >= MIN_TOKENS:
            find = cut(before, left[first:last])
            instead = cut(after, right[first : last + len(right) - len(left)])
            if find is not None and instead is not None:
                edits.append(Edit(find, instead))
    best = Edit(body=after)
    limit = MAX_COST * len(after)
    for edit in sorted(edits, key=lambda edit: edit.cost):
        if edit.cost >= limit:
            break
        whole = completed(before, after, edit, is_python, parts)
        if whole is not None and whole.cost < limit:
            best, limit = whole, whole.cost
    return best


def num_equal(left: Sequence[Token], right: Sequence[Token]) -> int:
    """How many tokens two sequences share at their beginnings."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].text == pair[1].text, pairs))


def readable_parts(code: str, found: Sequence[Token], is_python: bool) -> Iterator[tuple[int, int]]:
    """The readable parts of a definition: runs of lines and Python's expressions; as places in its tokens."""
    starts = {token.start: index for index, token in enumerate(found)}
    ends = {token.end: index + 1 for index, token in enumerate(found)}
    lines = [0]
    for line in code.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    heads = [
        index for index, token in enumerate(found) if code[: token.start].rpartition("\n")[2].strip() == ""
    ]
    heads = [index for index in heads if not found[index].text.startswith("\n")]
    for first in heads:
        for last in [*heads[1:], len(found)]:
            if last > first:
                yield first, last - (is_python and last < len(found))
    for node in ast.walk(ast.parse(code)) if is_python else ():
        if isinstance(node, ast.expr):
            start = place(code, lines, node.lineno, node.col_offset)
            end = place(code, lines, node.end_lineno or 0, node.end_col_offset or 0)
            if start in starts and end in ends:
                yield starts[start], ends[end]


def place(code: str, lines: Sequence[int], line: int, column: int) -> int:
    """Where a line and a column in bytes is, in characters."""
    start = lines[line - 1]
    return start + len(code[start:].encode()[:column].decode())


def cut(code: str, chosen: Sequence[Token]) -> str | None:
    """The code of some tokens, with the first line's indent taken from all; None if a line has less."""
    if not chosen:
        return ""
    before, text = code[: chosen[0].start], code[chosen[0].start : chosen[-1].end]
    line = before.rpartition("\n")[2] + text
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *others = text.split("\n")
    if any(other.strip() and not other.startswith(indent) for other in others):
        return None
    return "\n".join([first, *(other.removeprefix(indent) for other in others)])


def completed(
    before: str, after: str, edit: Edit, is_python: bool, parts: Sequence[tuple[int, int]]
) -> Edit | None:
    """An edit, with a fragment near it for variables that it does not show; None if it does not fit."""
    variables, left = local_names(before, is_python), tokens(before, is_python)
    missing = names_of(tokens(edit.replace, is_python)) & variables - names_of(tokens(edit.find, is_python))
    near: list[str] = [""]
    if missing:
        chosen = (left[first:last] for first, last in parts if missing <= names_of(left[first:last]))
        near = sorted({text for part in chosen if (text := cut(before, part))}, key=len)[:MAX_NEAR]
    for text in near:
        matches = find_matches(before, edit.find, text, is_python, renamed=variables)
        if len(matches) == 1:
            made = canonical(substitute(before, matches[0], edit.replace, is_python), is_python)
            return replace(edit, near=text) if texts(made, is_python) == texts(after, is_python) else None
    return None


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
