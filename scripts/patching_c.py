"""Put single functions of one C++, Metal or CUDA source into another, as `scripts.patching` does it.

Definitions that come along stand where the donor has them, so that they are declared before their use.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.c_source import Chunk, blocks, join, split
from scripts.render import is_python
from scripts.render_c import (
    body_of,
    drop_unused,
    droppable,
    functions,
    holes,
    is_hole,
    local_names,
    with_body,
)

Sources = dict[Path, str]


def fill_others(
    sources: Mapping[Path, str], donor: Mapping[Path, str], symbols: Collection[tuple[Path, str]]
) -> Sources:
    """The sources that are not Python and have symbols, as `fill` makes them; ValueError names the file."""
    result = {}
    for path, names in names_by_source(symbols).items():
        with named(path):
            result[path] = fill(sources[path], donor[path], names)
    return result


def dig_others(
    sources: Mapping[Path, str],
    starter: Mapping[Path, str],
    reference: Mapping[Path, str],
    symbols: Collection[tuple[Path, str]],
) -> Sources:
    """The sources that are not Python and have symbols, as `dig` makes them; ValueError names the file."""
    result = {}
    for path, names in names_by_source(symbols).items():
        with named(path):
            owned = holes(starter[path])
            result[path] = dig(sources[path], starter[path], reference[path], names, owned)
    return result


def names_by_source(symbols: Collection[tuple[Path, str]]) -> dict[Path, list[str]]:
    """Of each source that is not Python the names asked for."""
    found: dict[Path, list[str]] = {}
    for path, name in symbols:
        if not is_python(path):
            found.setdefault(path, []).append(name)
    return found


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the file's name before the sentence of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"tiny_llm/{path}, {error}") from None


def fill(source: str, donor: str, names: Collection[str]) -> str:
    """Write the donor's bodies into the holes among these functions, with the private things that they use.

    Raises:
        ValueError: a bracket of the source is never closed.
    """
    chunks, donated = list(split(source)), split(with_line_ends(donor, source))
    added: set[int] = set()
    words: set[str] = set()
    for name in names:
        present = functions(chunks, name)
        for number, index in enumerate(functions(donated, name)):
            if is_hole(donated[index]):
                continue
            if number >= len(present):
                added.add(index)
            elif is_hole(chunks[present[number]]):
                chunks[present[number]] = with_body(chunks[present[number]], body_of(donated[index]))
            else:
                continue
            words |= donated[index].words
    return join(insert(chunks, donated, added | supplies(chunks, donated, words))) if words else source


def dig(source: str, starter: str, reference: str, names: Collection[str], owned: Collection[str]) -> str:
    """Put the starter's text of these functions back, and remove what `fill` brought for them.

    Args:
        source: to change.
        starter: the reference with all its holes, and all else still there.
        reference: what `fill` took from.
        names: the functions.
        owned: all functions of the file that tasks ask for.

    Raises:
        ValueError: a name is no function any more, or a bracket of the source is never closed.
    """
    chunks, dug = list(split(source)), split(with_line_ends(starter, source))
    added: set[int] = set()
    for name in names:
        present = functions(chunks, name)
        if not present and any(name in chunk.names and chunk.kind != "declaration" for chunk in chunks):
            raise ValueError(f"{name}: it is not a function any more, so remove it and run this again")
        for number, index in enumerate(functions(dug, name)):
            if number >= len(present):
                added.add(index)
            else:
                old = chunks[present[number]]
                text = dug[index].text if old.text.endswith("\n") else dug[index].text.rstrip("\r\n")
                chunks[present[number]] = replace(dug[index], gap=old.gap, text=text)
    original = split(with_line_ends(reference, source))
    may_go, texts = droppable(join(original), owned), {chunk.text for chunk in original}
    chunks = insert(chunks, dug, added)
    known = {chunk.key for chunk in original if chunk.kind == "open"}
    return join(drop_unused(chunks, lambda chunk: may_go(chunk) and chunk.text in texts, known))


def with_line_ends(text: str, source: str) -> str:
    """The text with line ends as the source has them."""
    text = text.replace("\r\n", "\n")
    return text.replace("\n", "\r\n") if "\r\n" in source else text


def is_defined(chunks: Sequence[Chunk], name: str) -> bool:
    """Whether a source defines a name."""
    return any(name in chunk.names and chunk.kind not in ("declaration", "undef") for chunk in chunks)


def is_include(chunk: Chunk) -> bool:
    """Whether it is a line that includes a header."""
    return chunk.kind == "plain" and "include" in chunk.words


def supplies(chunks: Sequence[Chunk], donor: Sequence[Chunk], words: set[str]) -> set[int]:
    """What code with these words needs of the donor and the chunks lack: definitions and includes."""
    keys = {chunk.key for chunk in chunks}
    bound = {name for chunk in chunks if chunk.kind != "declaration" for name in local_names(chunk)}
    found = {i for i, chunk in enumerate(donor) if is_include(chunk) and chunk.key not in keys}
    words = set(words)
    while True:
        needed = {
            i
            for i, chunk in enumerate(donor)
            if i not in found
            and chunk.key not in keys
            and local_names(chunk) & words
            and not local_names(chunk) & bound
        }
        if not needed:
            return found
        found |= needed
        words.update(*(donor[i].words for i in needed))


def insert(chunks: Sequence[Chunk], donor: Sequence[Chunk], added: set[int]) -> list[Chunk]:
    """Put chunks of the donor where they stand there: after the nearest above that both have."""
    matches = common(chunks, donor)
    for block in blocks(donor):
        if any(block[0] < i < block[-1] for i in added):
            added = added | set(block)
    places: list[list[int]] = [[] for _ in range(len(chunks) + 1)]
    place = 0
    for i in range(len(donor)):
        if i in matches:
            place = matches[i] + 1
        elif i in added:
            places[place].append(i)
    twins = {ours: theirs for theirs, ours in matches.items()}
    result: list[Chunk] = []
    for place, new in enumerate(places):
        following = chunks[place] if place < len(chunks) else None
        above = twins.get(place - 1) if place else -1
        for i in new:
            gaps = (
                [donor[i], *([following] if following else [])] if above is None else donor[above + 1 : i + 1]
            )
            gap = max((chunk.gap for chunk in gaps), key=len)
            if result and not result[-1].text.endswith("\n"):
                gap = "\n" + gap
            result.append(replace(donor[i], gap=gap if result else ""))
            above = i
        if following and new and place in twins:
            gap = max((chunk.gap for chunk in donor[new[-1] + 1 : twins[place] + 1]), key=len)
            following = replace(following, gap=gap)
        result += [following] if following else []
    return result


def common(chunks: Sequence[Chunk], donor: Sequence[Chunk]) -> dict[int, int]:
    """A longest sequence of chunks that both have: places in the donor, and those in the chunks."""
    ours, theirs = [chunk.key for chunk in chunks], [chunk.key for chunk in donor]
    lengths = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            is_same = ours[i] == theirs[j]
            lengths[i][j] = (
                lengths[i + 1][j + 1] + 1 if is_same else max(lengths[i + 1][j], lengths[i][j + 1])
            )
    found, i, j = {}, 0, 0
    while i < len(ours) and j < len(theirs):
        if ours[i] == theirs[j]:
            found[j] = i
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
