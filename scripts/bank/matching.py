"""Where a fragment of code stands in a definition, whatever its local variables are called there."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from scripts.sources.tokens import Token, canonical, local_names, tokens


@dataclass(frozen=True)
class Match:
    """Where a pattern stands in code, and what its variables are called there."""

    start: int
    end: int
    names: Mapping[str, str]


def find_matches(
    code: str, find: str, near: str, is_python: bool, renamed: Collection[str] | None = None
) -> list[Match]:
    """All places where a fragment stands, given another that stands near it, or "".

    Args:
        code: of a symbol, as `canonical` writes it.
        find, near: fragments of such code.
        is_python: or C++, Metal, CUDA.
        renamed: names in the fragments that stand for any local variable; those that the code does not have
            unless given.
    """
    text = tokens(code, is_python)
    patterns = [tokens(canonical(part, is_python), is_python) for part in (find, near) if part]
    if renamed is None:
        has = {token.text for token in text if token.is_name}
        renamed = {token.text for part in patterns for token in part if token.is_name} - has
    variables = local_names(code, is_python)
    found: list[Match] = []
    for index, wanted in enumerate(patterns):
        places = [
            Match(text[first].start, text[first + len(wanted) - 1].end, names)
            for first in range(len(text) - len(wanted) + 1)
            if (names := unify(wanted, text[first : first + len(wanted)], renamed, variables)) is not None
        ]
        if index == 0:
            found = places
            continue
        pairs = [(match, join(match.names, place.names)) for match in found for place in places]
        joined = [Match(match.start, match.end, both) for match, both in pairs if both is not None]
        found = [match for i, match in enumerate(joined) if match not in joined[:i]]
    return found


def join(left: Mapping[str, str], right: Mapping[str, str]) -> dict[str, str] | None:
    """What both say of variables; None if they contradict each other."""
    both = {**left, **right}
    agree = all(both[name] == meaning for name, meaning in left.items())
    return both if agree and len(set(both.values())) == len(both) else None


def unify(
    wanted: Sequence[Token], text: Sequence[Token], renamed: Collection[str], variables: Collection[str]
) -> dict[str, str] | None:
    """What each variable of a pattern stands for in some code; None if the two differ otherwise."""
    names: dict[str, str] = {}
    if len(wanted) != len(text):
        return None
    for left, right in zip(wanted, text, strict=True):
        if left.is_name and left.text in renamed:
            if not right.is_name or right.text not in variables:
                return None
            if names.setdefault(left.text, right.text) != right.text:
                return None
        elif left.text != right.text:
            return None
    return names if len(set(names.values())) == len(names) else None


def rename(code: str, names: Mapping[str, str], is_python: bool) -> str:
    """Code with other names for its local variables."""
    for token in reversed(tokens(code, is_python)):
        if token.is_name and token.text in names:
            code = code[: token.start] + names[token.text] + code[token.end :]
    return code


def substitute(code: str, match: Match, replacement: str, is_python: bool) -> str:
    """Canonical code with a replacement in a place."""
    replacement = rename(textwrap.dedent(replacement).strip(), match.names, is_python)
    if not is_python:  # a directive needs a line of its own
        return f"{code[: match.start]}\n{replacement}\n{code[match.end :]}"
    line = code[code.rfind("\n", 0, match.start) + 1 :]
    indent = line[: len(line) - len(line.lstrip(" "))]
    lines = replacement.split("\n")
    indented = [lines[0], *(indent + line if line.strip() else line for line in lines[1:])]
    return code[: match.start] + "\n".join(indented) + code[match.end :]
