"""Code as tokens, so that formatting, comments and the names of local variables make no difference.

Python is compared as `ast.unparse` writes it; C++, Metal and CUDA without their comments.
"""

import ast
import functools
import itertools
import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STRING = r"""[A-Za-z]{0,2}(?P<quotes>\"{3}|'{3}|"|')(?:\\.|(?!(?P=quotes))[^\\])*(?P=quotes)"""
REST = (
    r"|(?P<space>[ \t\r\f]+|\\\r?\n)|(?P<line>\n[ \t\n]*)|(?P<number>\.?\d(?:[eE][+-]|[\w.])*)|(?P<name>\w+)"
    r"|->|::|\*\*|//|<<|>>|&&|\|\||\+\+|--|[-+*/%@&|^<>=!:]=|\S"
)
PYTHON = re.compile(rf"(?P<space>\#[^\n]*)|(?P<string>{STRING})".replace("<space>", "<comment>") + REST, re.S)
C = re.compile(rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>{STRING})" + REST, re.S)
NO_VARIABLE_AFTER = {True: (".", "!", "def", "class"), False: (".", "->", "::")}  # in Python, and elsewhere
FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
DECLARED = re.compile(
    r"(?:[\w>*&\]]\s*[*&\s]\s*|,\s*(?=\w+\s*=[^=]))([^\W\d]\w*)\s*(?=[=;,)\[:{]|\(\w*\);$)", re.M
)


@dataclass(frozen=True)
class Token:
    """A word or sign of code, at `start` to `end`; `is_name` if it may be a local variable."""

    text: str
    start: int
    end: int
    is_name: bool = False


@functools.lru_cache(maxsize=8192)
def canonical(code: str, is_python: bool) -> str:
    """Code without formatting and comments; a fragment that Python cannot read stays as it is."""
    if not is_python:
        bare = C.sub(lambda match: " " if match["comment"] else match[0], code)
        lines = [line.rstrip() for line in bare.splitlines() if line.strip()]
        return textwrap.dedent("\n".join(lines))
    code = textwrap.dedent(code).strip()
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return code
    is_value = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
    return code if is_value and "\n" not in code else ast.unparse(tree)


@functools.lru_cache(maxsize=4096)
def tokens(code: str, is_python: bool) -> tuple[Token, ...]:
    """The tokens of canonical code; in Python a line's end is one too, and says how the indent changes."""
    found: list[Token] = []
    for token in split(code, is_python):
        if token.text in ")]}" and found and found[-1].text == ",":
            found.pop()
        found.append(token)
    if is_python:
        found = without_docstrings(found)
    while found and found[-1].text.startswith("\n"):
        found.pop()
    return tuple(with_names(found, is_python))


def split(code: str, is_python: bool) -> Iterator[Token]:
    """The words and signs of code."""
    depth, indent = 0, 0
    for match in (PYTHON if is_python else C).finditer(code):
        text, start, end = match[0], match.start(), match.end()
        if match["comment"] or match["space"]:
            continue
        if match["line"]:
            if is_python and depth <= 0:
                new = end - code.rfind("\n", 0, end) - 1
                yield Token(f"\n{(new - indent) // 4}", start, end)
                indent = new
        elif match["string"] and is_python:
            yield from split_string(text, start)
        else:
            depth += (text in "([{") - (text in ")]}")
            yield Token(text, start, end)


def split_string(text: str, start: int) -> Iterator[Token]:
    """A string of Python, whatever its quotes; of an f-string each field is code."""
    quotes = text.lstrip("rRbBuUfF")
    prefix = text[: len(text) - len(quotes)].lower()
    if "f" not in prefix:
        yield Token(repr(ast.literal_eval(text)), start, start + len(text))
        return
    width = 3 if quotes[:3] in ('"' * 3, "'" * 3) else 1
    last, end, opening = start, start + len(text), len(prefix) + width
    for match in FIELD.finditer(text, opening, len(text) - width):
        if match[1] is not None:
            literal = text[max(last - start, opening) : match.start() + 1]
            yield Token("f'" * (last == start) + literal, last, start + match.start() + 1)
            for token in split(match[1], is_python=True):
                place = start + match.start(1)
                yield Token(token.text, token.start + place, token.end + place)
            last = start + match.end(1)
    literal = text[max(last - start, opening) : len(text) - width]
    yield Token("f'" * (last == start) + literal + "'", last, end)


def without_docstrings(found: Sequence[Token]) -> list[Token]:
    """Python's tokens without statements that are a string."""
    kept: list[Token] = []
    for index, token in enumerate(found):
        is_string = token.text[0] in "'\"" and len(found) > 1
        begins = index == 0 or found[index - 1].text.startswith("\n")
        ends = index + 1 == len(found) or found[index + 1].text.startswith("\n")
        if is_string and begins and ends:
            continue
        if token.text == "\n0" and kept and kept[-1].text.startswith("\n"):
            continue
        kept.append(token)
    return kept


def with_names(found: Sequence[Token], is_python: bool) -> Iterator[Token]:
    """The tokens, marked where a local variable may stand: no attribute, and no argument's keyword."""
    steps = [(token.text in ("(", "[", "{")) - (token.text in (")", "]", "}")) for token in found]
    depth = -min(itertools.accumulate(steps, initial=0))  # a fragment may close what it does not open
    is_header = False
    for index, token in enumerate(found):
        before = found[index - 1].text if index else "\n"
        after = found[index + 1].text if index + 1 < len(found) else ""
        if before.startswith("\n"):
            is_header = token.text in ("def", "async")
        depth += steps[index]
        is_name = (
            re.fullmatch(r"[^\W\d]\w*", token.text) is not None and before not in NO_VARIABLE_AFTER[is_python]
        )
        if is_python:
            is_keyword = after == "=" and before in ("(", ",") and depth > 0 and not is_header
            is_name = is_name and not is_keyword and not keyword.iskeyword(token.text)
        yield Token(token.text, token.start, token.end, is_name)


@functools.lru_cache(maxsize=4096)
def local_names(code: str, is_python: bool) -> frozenset[str]:
    """The names that a definition binds inside its functions."""
    if not is_python:
        return frozenset(DECLARED.findall(code))
    return frozenset(name for node in ast.parse(code).body for name in bound_names(node, False))


def bound_names(node: ast.AST, is_inside: bool) -> Iterator[str]:
    """The names that a node binds; those of a class or a module are none of a function."""
    is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.comprehension)
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and is_inside:
        yield node.id
    elif isinstance(node, ast.ExceptHandler):
        yield node.name or ""
    elif is_inside and isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    for child in ast.iter_child_nodes(node):
        yield from bound_names(child, (is_inside or is_scope) and not isinstance(node, ast.ClassDef))
