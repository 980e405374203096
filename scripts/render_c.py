"""Holes in C++, Metal and CUDA sources, and the removal of what only the removed bodies used.

Macros, types, constants and functions go that are private to the file: those that are `static`, `inline`,
`constexpr`, templates or for the device only, and those in a namespace without a name. An entry point of a
GPU is never private unless it is `static`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from scripts.c_source import Chunk, blocks, join, mask, split

HOLE = re.compile(r'NOT_WRITTEN_YET\(\s*"(week \d+ day \d+ task \d+: \S+ is not written yet)"\s*\)')


def render_c(source: str, sentences: Mapping[str, str], owned: Collection[str]) -> str:
    """A source with holes.

    Args:
        source: all of it.
        sentences: what to say instead, by the names of the functions that lose their bodies.
        owned: names of all functions that tasks ask for; they stay, private or not.
    """
    chunks, is_droppable = split(dig_holes(source, sentences)), droppable(source, owned)
    return join(drop_unused(chunks, is_droppable)) if sentences else source


def dig_holes(source: str, sentences: Mapping[str, str]) -> str:
    """A source with holes in which all else is still there."""
    return join(
        [
            make_hole(chunk, sentences[chunk.names[0]])
            if chunk.kind == "function" and chunk.names[0] in sentences
            else chunk
            for chunk in split(source)
        ]
    )


def has_function(source: str, name: str) -> bool:
    """Whether a source defines a function of that name."""
    return bool(functions(split(source), name))


def functions(chunks: Sequence[Chunk], name: str) -> list[int]:
    """Where a function is defined, more than once if it is overloaded."""
    return [i for i, chunk in enumerate(chunks) if chunk.kind == "function" and chunk.names == (name,)]


def holes(source: str) -> dict[str, str]:
    """The sentence of each hole of a source, by the function's name; a source that is broken has them too."""
    code = mask(source)
    sentences = [match[1] for match in HOLE.finditer(source) if code[match.start()] == "N"]
    return {sentence.split(": ")[1].split(" ")[0]: sentence for sentence in sentences}


def is_hole(chunk: Chunk) -> bool:
    """Whether all that a function does is to say that it is not written yet."""
    inside = body_of(chunk)
    return HOLE.search(inside) is not None and re.findall(r"\w+", mask(inside)) == ["NOT_WRITTEN_YET"]


def body_of(chunk: Chunk) -> str:
    """What is between a function's braces."""
    return chunk.text[slice(*chunk.body)] if chunk.body else ""


def with_body(chunk: Chunk, body: str) -> Chunk:
    """The same function with another body."""
    first, last = chunk.body or (0, 0)
    text = chunk.text[:first] + body + chunk.text[last:]
    return replace(chunk, text=text, body=(first, first + len(body)))


def make_hole(chunk: Chunk, sentence: str) -> Chunk:
    """The function without its solution."""
    line_end = "\r\n" if "\r\n" in chunk.text else "\n"
    inside = body_of(chunk)
    last_line = inside.rpartition("\n")[2] if "\n" in inside else chunk.text
    indent = re.match(r"[ \t]*", last_line)[0]  # type: ignore[index]
    return with_body(chunk, f'{line_end}{indent}  NOT_WRITTEN_YET("{sentence}");{line_end}{indent}')


def droppable(original: str, owned: Collection[str]) -> Callable[[Chunk], bool]:
    """A test for chunks that go once nothing uses them; what the original does not use itself never goes."""

    def is_private(chunk: Chunk) -> bool:
        return chunk.is_private and not set(chunk.names) & set(owned)

    used = live_words(split(original), is_private)
    return lambda chunk: is_private(chunk) and bool(local_names(chunk) & used)


def drop_unused(
    chunks: Sequence[Chunk],
    is_droppable: Callable[[Chunk], bool],
    known: Collection[tuple[str, ...]] | None = None,
) -> list[Chunk]:
    """The chunks without those droppable ones that nothing uses, and without blocks that are empty then.

    Args:
        chunks: of a source.
        is_droppable: whether a chunk goes if no other uses it.
        known: keys of the chunks that open blocks which may go; all may if it is None.
    """
    kept = list(chunks)
    while True:
        used = live_words(kept, is_droppable)
        gone = {i for i, chunk in enumerate(kept) if is_droppable(chunk) and not local_names(chunk) & used}
        for block in blocks(kept):
            inside = set(range(block[0], block[-1] + 1)) - set(block)
            is_empty = all(kept[i].kind == "comment" or i in gone for i in inside)
            if is_empty and (known is None or kept[block[0]].key in known):
                gone |= inside | set(block)
        if not gone:
            return kept
        kept = without(kept, gone)


def live_words(chunks: Sequence[Chunk], is_droppable: Callable[[Chunk], bool]) -> set[str]:
    """Every name in what stays, in the droppable chunks that it uses, and in those that they use."""
    pending = list(chunks)
    words: set[str] = set()
    while live := [chunk for chunk in pending if not is_droppable(chunk) or local_names(chunk) & words]:
        words.update(*(chunk.words for chunk in live))
        pending = [chunk for chunk in pending if chunk not in live]
    return words


def local_names(chunk: Chunk) -> set[str]:
    """What a chunk defines, as code names it."""
    return {name.split(".")[-1] for name in chunk.names}


def without(chunks: Sequence[Chunk], gone: Collection[int]) -> list[Chunk]:
    """The other chunks; of the gaps around what is gone the largest stays."""
    kept: list[Chunk] = []
    gap = ""
    for i, chunk in enumerate(chunks):
        gap = max(gap, chunk.gap, key=len)
        if i not in gone:
            if i - 1 in gone:
                chunk = replace(chunk, gap=gap if kept else "")
            kept.append(chunk)
            gap = ""
    return kept
