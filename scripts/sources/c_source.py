"""A C++, Metal or CUDA source cut into chunks, without a parser.

Enough for sources laid out as clang-format does it: a definition starts on a line of its own, a macro that
is called at the top ends with a semicolon, and no brace opens in one branch of an #if and closes after it.
A namespace is one chunk: what is in it comes and goes with it.
"""

import functools
import re
from typing import NamedTuple

from scripts.sources.chunks import GAP, HOLE_STATEMENT, Chunk, functions, join

TOKEN = re.compile(
    r"""(?P<hidden> // (?: \\\r?\n | [^\n] )* | /\* .*? \*/
        | (?:u8|[uUL])? R"(?P<mark>[^()\s\\]*)\( .*? \)(?P=mark)"
        | "(?: \\. | [^"\\\n] )*" | '(?: \\. | [^'\\\n] )*' )
        | \d (?: '?[\w.] )* | \w+""",
    re.S | re.X,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.M)
COMMENTS = re.compile(r"(?:[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t\r]*)(?:\n|\Z))+", re.S)
REST_OF_LINE = re.compile(r"[ \t;]*(?:/\*[^\n]*?\*/[ \t]*)?(?://[^\n]*)?(?:\r?\n|\Z)")
BRACKET = re.compile(r"[(){}\[\];]")
BLOCK = re.compile(r"(?:inline\s+)?namespace\b[\s\w:]*|extern")
TYPE = re.compile(r"(?:template\s*)?(?:struct|class|union|enum)\b([^{:=]*)")
NO_FUNCTIONS = {
    *("alignas", "decltype", "explicit", "noexcept", "requires", "static_assert"),
    *("__align__", "__attribute__", "__declspec", "__launch_bounds__"),
}
PRIVATE = {"static", "inline", "constexpr", "__device__", "__forceinline__", "METAL_FUNC"}
PRIVATE_CONSTANT = PRIVATE | {"const", "constant", "__constant__"}
ENTRY_POINTS = {"kernel", "__global__"}


class Code(NamedTuple):
    """What stands at a place, and where it ends."""

    end: int
    kind: str
    names: tuple[str, ...] = ()
    body: tuple[int, int] | None = None


@functools.lru_cache(maxsize=256)
def split(source: str) -> tuple[Chunk, ...]:
    """The chunks of a source, in order.

    Raises:
        ValueError: a bracket has no partner; with the line.
    """
    code = mask(source)
    structure = DIRECTIVE.sub(blank, code)
    found: list[Chunk] = []
    position = 0
    while position < len(source):
        start = end_of(GAP, source, position)
        first = end_of(COMMENTS, source, start)
        if code[first:].split("\n", 1)[0].strip():
            item = read_directive(code, first) or read_code(structure, first)
            end = end_of(REST_OF_LINE, source, item.end)
            header = structure[first : item.body[0] if item.body else item.end]
            private = bool(item.names) and may_be_private(item, header)
            body = (item.body[0] - start, item.body[1] - start) if item.body else None
            text = source[start:end]
            found.append(
                Chunk(source[position:start], text, item.kind, item.names, words_of(text), private, body)
            )
        else:
            end = first if first > start else len(source)
            found.append(Chunk(source[position:start], source[start:end], "comment"))
        position = end
    return tuple(found)


def words_of(source: str) -> frozenset[str]:
    """Every name in code, a keyword as well."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", mask(source)))


def mask(source: str) -> str:
    """The source with spaces for comments and for all that is quoted; places stay the same."""
    return TOKEN.sub(lambda match: blank(match) if match["hidden"] else match[0], source)


def blank(match: re.Match[str]) -> str:
    """As many spaces, and the same line ends."""
    return re.sub(r"[^\r\n]", " ", match[0])


def end_of(pattern: re.Pattern[str], source: str, position: int) -> int:
    """Where a match that starts at the position ends; the position itself if there is none."""
    match = pattern.match(source, position)
    return match.end() if match else position


def read_directive(code: str, first: int) -> Code | None:
    """A line of the preprocessor, if one starts there."""
    match = DIRECTIVE.match(code, first)
    if match is None:
        return None
    word, *rest = re.findall(r"\w+", match[0]) or [""]
    if word in ("define", "undef"):
        return Code(match.end(), word, tuple(rest[:1]))
    return Code(match.end(), "include" if word == "include" else "plain")


def read_code(structure: str, first: int) -> Code:
    """What starts at a place outside all brackets; ValueError if a bracket has no partner."""
    opened: list[int] = []
    name, body, is_block = "", 0, False
    for match in BRACKET.finditer(structure, first):
        place, bracket = match.start(), match[0]
        if bracket == "{" and not opened:
            header = structure[first:place].strip()
            is_block = BLOCK.fullmatch(header) is not None
            name, body = function_name(header, is_definition=True), place + 1
        if bracket in "([{":
            opened.append(place)
        elif bracket == ";" and not opened:
            return Code(place + 1, *read_declaration(structure[first:place]))
        elif bracket in ")]}" and opened:
            opened.pop()
            is_last = structure[place + 1 :].lstrip()[:1] not in ("{", ",")  # else members are initialized
            if bracket == "}" and not opened and is_block:
                return Code(place + 1, "plain")
            if bracket == "}" and not opened and name and is_last:
                return Code(place + 1, "function", (name,), (body, place))
        elif bracket in ")]}":
            raise ValueError(f"line {structure.count(chr(10), 0, place) + 1}: `{bracket}` closes nothing")
    if opened:
        line = structure.count("\n", 0, opened[0]) + 1
        raise ValueError(f"line {line}: `{structure[opened[0]]}` is never closed")
    return Code(len(structure), "plain")


def read_declaration(code: str) -> tuple[str, tuple[str, ...]]:
    """Kind and names of what ends with a semicolon."""
    outside = flat(code).strip()
    if re.match(r"template\s*[^<\s]", code.strip()) or re.match(
        r"(using\s+namespace|static_assert)\b", outside
    ):
        return "plain", ()  # an explicit instantiation, for one
    if outside.startswith(("using ", "typedef ")):
        alias = re.sub(r"\b__attribute__\s*\(", "", outside.split("=")[0])
        return "type", tuple(re.findall(r"\w+", alias)[-1:])
    if match := TYPE.match(outside):
        tag = [word for word in re.findall(r"\w+(?!\w*\()", match[1]) if word != "final"][-1:]
        enumerators = re.findall(r"[A-Za-z_]\w*", code.partition("{")[2]) if "enum" in match[0] else []
        return "type", tuple(dict.fromkeys([*tag, *enumerators]))
    if name := function_name(code):
        return "declaration", (name,)
    declared = [re.findall(r"\w+", re.split(r"[={]", part)[0]) for part in outside.split(",")]
    names = tuple(words[-1] for words in declared if words)
    return ("constant", names) if len(outside.split()) > 1 else ("plain", ())


def function_name(header: str, is_definition: bool = False) -> str:
    """The name of the function that a header declares, with dots for `::`; nothing if it declares none."""
    outside = flat(re.sub(r"\boperator\s*(\(\s*\)|[^\w\s(]+)", "operator_", header))
    if "=" in outside:
        return ""
    for match in re.finditer(r"([\w:~]+)\s*\(", outside):
        if match[1] not in NO_FUNCTIONS:
            is_call_of_macro = not outside[: match.start()].strip() and "::" not in match[1]
            return "" if is_call_of_macro and not is_definition else match[1].lstrip(":").replace("::", ".")
    return ""


def flat(code: str) -> str:
    """The code without what is in brackets: of round ones `(` stays, of curly ones `{`, of others nothing."""
    code = code.replace("->", "  ")
    pairs = [(r"\{[^{}]*\}", "\1"), (r"\([^()]*\)", "\2"), (r"\[[^\[\]]*\]", ""), (r"<[^<>]*>", "")]
    for inside, stand_in in pairs:
        count = 1
        while count:
            code, count = re.subn(inside, stand_in, code)
    return code.replace("\1", "{").replace("\2", "(")


def may_be_private(found: Code, header: str) -> bool:
    """Whether what a header declares is known to its own file alone."""
    if found.kind in ("type", "define", "undef"):
        return True
    words = set(re.findall(r"\w+", flat(header)))
    if found.kind == "constant":
        return bool(words & PRIVATE_CONSTANT)
    is_entry_point = bool(set(re.findall(r"\w+", header)) & ENTRY_POINTS)
    is_template = header.lstrip().startswith("template") and not is_entry_point
    return is_template or bool(words & PRIVATE)


def holes(source: str) -> dict[str, str]:
    """The sentence of each hole of a source, by the function's name; a source that is broken has them too."""
    code = mask(source)
    return {hole[5]: hole[1] for hole in HOLE_STATEMENT.finditer(source) if code[hole.start()] == "N"}


def line_of_function(source: str, name: str) -> int | None:
    """The line at which a source defines a function; None if it cannot be found."""
    try:
        chunks = split(source)
    except ValueError:
        return None
    for i in functions(chunks, name)[:1]:
        code = mask(chunks[i].text)
        above = join(chunks[:i]) + chunks[i].gap + code[: len(code) - len(code.lstrip())]
        return above.count("\n") + 1
    return None
