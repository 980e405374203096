"""Put single functions of one package into another, with what they need, and leave the rest as it is.

`fill` writes solutions into holes, `dig` makes holes again. Both map sources to sources.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from scripts.sources.chunks import Chunk, drop_unused, functions, insert, is_defined, join, spans, without
from scripts.sources.files import Sources, Symbol
from scripts.sources.python_source import aliases_of, with_aliases
from scripts.sources.symbols import split


def fill(sources: Mapping[Path, str], donor: Mapping[Path, str], symbols: Collection[Symbol]) -> Sources:
    """Write the donor's bodies into the holes among the symbols.

    Private helpers, constants and imports that these bodies need come along where the sources lack them.

    Args:
        sources: the package to complete, by path.
        donor: a package in which only those symbols are holes that are to stay holes.
        symbols: path of the module and dotted name of each function.

    Returns:
        sources: all of them, changed or not.

    Raises:
        ValueError: a source cannot be read; with its path and the line.
    """
    return each_source(
        sources, symbols, lambda path, names: fill_source(path, sources[path], donor[path], names)
    )


def dig(
    sources: Mapping[Path, str],
    starter: Mapping[Path, str],
    reference: Mapping[Path, str],
    symbols: Collection[Symbol],
) -> Sources:
    """Put the starter's text of the symbols back.

    What `fill` may have brought along goes too, if nothing uses it any more and it is still the reference's
    to the letter; a learner's own helpers stay.

    Args:
        sources: the package to change, by path.
        starter: the package with nothing solved.
        reference: the package that `fill` took from.
        symbols: path of the module and dotted name of each function.

    Raises:
        ValueError: a symbol is there, but is no function any more, or a source cannot be read.
    """
    return each_source(
        sources,
        symbols,
        lambda path, names: dig_source(path, sources[path], starter[path], reference[path], names),
    )


def each_source(
    sources: Mapping[Path, str], symbols: Collection[Symbol], change: Callable[[Path, list[str]], str]
) -> Sources:
    """All sources, changed where a symbol is; the file's name stands before the sentence of a ValueError."""
    result = dict(sources)
    for path in dict.fromkeys(path for path, _ in symbols):
        try:
            result[path] = change(path, [name for other, name in symbols if other == path])
        except ValueError as error:
            raise ValueError(f"tiny_llm/{path}, {error}") from None
    return result


def split_like(path: Path, text: str, source: str) -> list[Chunk]:
    """The chunks of a text, with line ends as the source has them."""
    text = text.replace("\r\n", "\n")
    return list(split(path, text.replace("\n", "\r\n") if "\r\n" in source else text))


def fill_source(path: Path, source: str, donor: str, names: Collection[str]) -> str:
    """A source with the donor's functions for those that are holes or not there, and what these need."""
    chunks, donated = list(split(path, source)), split_like(path, donor, source)
    added: set[int] = set()
    words: set[str] = set()
    for name in names:
        present = functions(chunks, name)
        for number, index in enumerate(functions(donated, name)):
            solution = donated[index]
            if solution.is_hole or (not present and is_defined(chunks, name)):
                continue
            if number >= len(present):
                added |= with_its_class(chunks, donated, index)
            elif chunks[present[number]].is_hole:
                chunks[present[number]] = chunks[present[number]].filled(solution)
                words |= solution.words
    if not added and not words:
        return source
    bound = {name for chunk in chunks if chunk.kind != "declaration" for name in chunk.names}
    added, words = with_what_they_use(chunks, donated, added, words, bound)
    for i, chunk in enumerate(donated):
        if chunk.kind == "import" and (lacking := words.intersection(chunk.names) - bound):
            new = {name: code for name, code in aliases_of(chunk).items() if name in lacking}
            twins = [j for j, each in enumerate(chunks) if each.key == chunk.key]
            for j in twins[:1]:
                chunks[j] = with_aliases(chunks[j], {**aliases_of(chunks[j]), **new})
            if not twins:
                donated[i] = with_aliases(chunk, new)
                added.add(i)
    return join(insert(chunks, donated, added))


def with_what_they_use(
    chunks: Sequence[Chunk],
    donor: Sequence[Chunk],
    added: Collection[int],
    words: Collection[str],
    bound: Set[str],
) -> tuple[set[int], set[str]]:
    """Chunks of the donor, with what they and some words use of it and the chunks lack; and all words."""
    keys = {chunk.key for chunk in chunks}
    found = {i for i, chunk in enumerate(donor) if chunk.kind == "include" and chunk.key not in keys}
    found.update(added)
    used = set(words)
    while True:
        used.update(*(donor[i].words for i in found))
        needed = {
            each
            for i, chunk in enumerate(donor)
            if chunk.local_names & used and chunk.kind not in ("import", "close") and chunk.key not in keys
            if not bound & set(chunk.names) and (chunk.is_private or "." not in chunk.names[0])
            for each in with_its_class(chunks, donor, i)
        }
        if needed <= found:
            return found, used
        found |= needed


def with_its_class(chunks: Sequence[Chunk], donor: Sequence[Chunk], index: int) -> set[int]:
    """A chunk of the donor, with the rest of the class that it opens or that the chunks lack."""
    name = donor[index].names[0]
    owner = name if donor[index].kind == "open" else name.rpartition(".")[0]
    return {index}.union(*([] if is_defined(chunks, owner) else spans(donor, owner)))


def dig_source(path: Path, source: str, starter: str, reference: str, names: Collection[str]) -> str:
    """A source with the starter's text of these functions, without what `fill` brought for them."""
    chunks = list(split(path, source))
    dug, original = (split_like(path, text, source) for text in (starter, reference))
    before = frozenset().union(*(chunk.words for chunk in chunks))
    added: set[int] = set()
    for name in names:
        present = functions(chunks, name)
        if not present and is_defined(chunks, name):
            raise ValueError(f"{name}: it is not a function any more, so remove it and run this again")
        for number, index in enumerate(functions(dug, name)):
            if number < len(present):
                old = chunks[present[number]]
                text = dug[index].text if old.text.endswith("\n") else dug[index].text.rstrip("\r\n")
                chunks[present[number]] = replace(dug[index], gap=old.gap, text=text)
            else:
                added |= with_its_class(chunks, dug, index)
    keys, texts = {chunk.key for chunk in dug}, {chunk.text for chunk in original}
    chunks = drop_unused(insert(chunks, dug, added), lambda x: x.key not in keys and x.text in texts)
    unused = before.difference(*(chunk.words for chunk in chunks))
    return join(without_imports(chunks, original, unused))


def without_imports(
    chunks: Sequence[Chunk], original: Sequence[Chunk], unused: Collection[str]
) -> list[Chunk]:
    """The chunks without the imports of unused names that the original has as well."""
    known = {(chunk.key, name) for chunk in original if chunk.kind == "import" for name in chunk.names}
    kept, gone = list(chunks), set()
    for i, chunk in enumerate(chunks):
        names = [name for name in chunk.names if chunk.kind == "import" and (chunk.key, name) in known]
        if left := set(names) & set(unused):
            rest = {name: code for name, code in aliases_of(chunk).items() if name not in left}
            kept[i] = with_aliases(chunk, rest) if rest else chunk
            gone |= set() if rest else {i}
    return without(kept, gone)
