"""A C++, Metal or CUDA source cut into what stands at its top, without a parser.

Enough for sources laid out as clang-format does it: a definition starts on a line of its own, a macro that
is called at the top ends with a semicolon, and no brace opens in one branch of an #if and closes after it.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<hidden> // (?: \\\r?\n | [^\n] )* | /\* .*? \*/
        | (?:u8|[uUL])? R"(?P<mark>[^()\s\\]*)\( .*? \)(?P=mark)"
        | "(?: \\. | [^"\\\n] )*" | '(?: \\. | [^'\\\n] )*' )
        | \d (?: '?[\w.] )* | \w+""",
    re.S | re.X,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.M)
GAP = re.compile(r"(?:[ \t]*\r?\n)*")
COMMENTS = re.compile(r"(?:[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t\r]*)(?:\n|\Z))+", re.S)
REST_OF_LINE = re.compile(r"[ \t;]*(?:/\*[^\n]*?\*/[ \t]*)?(?://[^\n]*)?(?:\r?\n|\Z)")
BRACKET = re.compile(r"[(){}\[\];]")
BLOCK = re.compile(r"(?:inline\s+)?namespace\b(?P<name>[\s\w:]*)|extern")
TYPE = re.compile(r"(?:template\s*)?(?:struct|class|union|enum)\b([^{:=]*)")
NO_FUNCTIONS = {
    *("alignas", "decltype", "explicit", "noexcept", "requires", "static_assert"),
    *("__align__", "__attribute__", "__declspec", "__launch_bounds__"),
}
PRIVATE = {"static", "inline", "constexpr", "__device__", "__forceinline__", "METAL_FUNC"}
PRIVATE_CONSTANT = PRIVATE | {"const", "constant", "__constant__"}
ENTRY_POINTS = {"kernel", "__global__"}


@dataclass(frozen=True)
class Chunk:
    """Something at the top of a source, or of a namespace there, with the comment right above it.

    Args:
        gap: the blank lines above.
        text: its lines, to the byte.
        kind: function, declaration, type, constant, define, undef, comment, open, middle, close or plain;
            a block opens and closes with `namespace x {` and `}`, or with `#if` and `#endif`.
        names: what it defines; of a function its name, with dots such as Reader.next.
        words: every name in its code.
        is_private: nothing outside the file can know it.
        body: where in `text` the inside of a function's braces starts and ends.
    """

    gap: str
    text: str
    kind: str
    names: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    is_private: bool = False
    body: tuple[int, int] | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What it is recognized by in another version of the source."""
        return (self.kind, *(self.names or self.text.split()))


@dataclass(frozen=True)
class Code:
    """What a chunk's code was found to be, and where it ends."""

    end: int
    kind: str
    names: tuple[str, ...] = ()
    body: tuple[int, int] | None = None


@functools.lru_cache(maxsize=64)
def split(source: str) -> tuple[Chunk, ...]:
    """The chunks of a source, in order; with their gaps they are the source again.

    Raises:
        ValueError: a bracket or an #if has no end, or an end no beginning; with the line.
    """
    code = mask(source)
    structure = DIRECTIVE.sub(blank, code)
    found: list[Chunk] = []
    open_blocks: list[tuple[str, int]] = []  # the line that opens each, and its number
    position = 0
    while position < len(source):
        start = end_of(GAP, source, position)
        first = end_of(COMMENTS, source, start)
        is_hidden = any(line.startswith("namespace {") for line, _ in open_blocks)
        chunk = read_chunk(source, code, structure, (position, start, first), is_hidden)
        update_blocks(open_blocks, chunk.kind, code[first:].strip(), source.count("\n", 0, first) + 1)
        found.append(chunk)
        position += len(chunk.gap + chunk.text)
    if open_blocks:
        raise ValueError(f"line {open_blocks[-1][1]}: what opens here is never closed")
    return tuple(found)


def join(chunks: Sequence[Chunk]) -> str:
    """The source."""
    return "".join(chunk.gap + chunk.text for chunk in chunks)


def blocks(chunks: Sequence[Chunk]) -> Iterator[list[int]]:
    """Of every block the chunks that open it, cut it at an #else, and close it; inner blocks come first."""
    open_blocks: list[list[int]] = []
    for index, chunk in enumerate(chunks):
        if chunk.kind == "open":
            open_blocks.append([index])
        elif chunk.kind in ("middle", "close"):
            open_blocks[-1].append(index)
        if chunk.kind == "close":
            yield open_blocks.pop()


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


def read_chunk(
    source: str, code: str, structure: str, places: tuple[int, int, int], is_hidden: bool
) -> Chunk:
    """One chunk, given where the gap above it, the comment above it and it itself start."""
    position, start, first = places
    gap = source[position:start]
    if not code[first:].split("\n", 1)[0].strip():
        return Chunk(gap, source[start:first] or source[start:], "comment")
    found = read_directive(code, first) or read_code(structure, first)
    end = end_of(REST_OF_LINE, source, found.end)
    header = structure[first : found.body[0] if found.body else found.end]
    is_private = bool(found.names) and (is_hidden or may_be_private(found, header))
    body = (found.body[0] - start, found.body[1] - start) if found.body else None
    words = frozenset(re.findall(r"[A-Za-z_]\w*", code[first:end]))
    return Chunk(gap, source[start:end], found.kind, found.names, words, is_private, body)


def read_directive(code: str, first: int) -> Code | None:
    """A line of the preprocessor, if one starts there."""
    match = DIRECTIVE.match(code, first)
    if match is None:
        return None
    word, *rest = re.findall(r"\w+", match[0]) or [""]
    if word in ("define", "undef"):
        return Code(match.end(), word, tuple(rest[:1]))
    kind = "open" if word.startswith("if") else "middle" if word.startswith("el") else "plain"
    return Code(match.end(), "close" if word == "endif" else kind)


def read_code(structure: str, first: int) -> Code:
    """What starts at a place outside all brackets; ValueError if a bracket has no partner."""
    opened: list[int] = []
    name, body = "", 0
    for match in BRACKET.finditer(structure, first):
        place, bracket = match.start(), match[0]
        if bracket == "{" and not opened:
            header = structure[first:place].strip()
            if BLOCK.fullmatch(header):
                return Code(place + 1, "open")
            name, body = function_name(header, is_definition=True), place + 1
        if bracket in "([{":
            opened.append(place)
        elif bracket == ";" and not opened:
            return Code(place + 1, *read_declaration(structure[first:place]))
        elif bracket in ")]}" and opened:
            opened.pop()
            is_last = structure[place + 1 :].lstrip()[:1] not in ("{", ",")  # else members are initialized
            if bracket == "}" and not opened and name and is_last:
                return Code(place + 1, "function", (name,), (body, place))
        elif bracket == "}":
            is_bare = not structure[first:place].strip()
            return Code(place + 1, "close") if is_bare else Code(place, "plain")
        elif bracket in ")]":
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
    if found.kind == "constant":
        return bool(set(re.findall(r"\w+", flat(header))) & PRIVATE_CONSTANT)
    last = found.names[0].split(".")[-1]
    head = set(re.findall(r"\w+", re.split(rf"\b{last}\s*\(", flat(header))[0]))
    is_template = header.lstrip().startswith("template") and not ENTRY_POINTS & set(
        re.findall(r"\w+", header)
    )
    return is_template or bool(head & PRIVATE)


def update_blocks(open_blocks: list[tuple[str, int]], kind: str, code: str, line: int) -> None:
    """Note what a chunk opens or closes; ValueError if it closes what is not open."""
    if kind == "open":
        open_blocks.append((" ".join(code.split(maxsplit=2)[:2]).replace("namespace{", "namespace {"), line))
    elif kind in ("middle", "close"):
        if not open_blocks or open_blocks[-1][0].startswith("#") != code.startswith("#"):
            raise ValueError(f"line {line}: there is nothing that this could close")
        if kind == "close":
            open_blocks.pop()
