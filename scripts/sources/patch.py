"""Put single functions of one package into another, with what they need, and leave the rest as it is.

`fill` writes solutions into holes, `dig` makes holes again. Both map sources to sources.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.sources.chunks import Chunk, drop_unused, functions, insert, is_defined, join, spans, without
from scripts.sources.files import Sources, Symbol
from scripts.sources.fill import OTHER_NAME, fill_source
from scripts.sources.imports import aliases_of, with_aliases
from scripts.sources.symbols import split, split_like
from scripts.sources.unbound import unbound
from scripts.waiting import counted

SHELLS = ("import", "include", "close")
"""Kinds of chunks that bind names without defining anything."""


def fill(
    sources: Mapping[Path, str],
    starter: Mapping[Path, str],
    reference: Mapping[Path, str],
    symbols: Collection[Symbol],
) -> Sources:
    """Write the reference's bodies into the holes among the symbols, and change nothing else that is there.

    Helpers, constants and imports that these bodies need come along where the sources lack them.

    Args:
        sources: the package to complete, by path.
        starter: the package with nothing solved.
        reference: the package with all solved.
        symbols: path of the module and dotted name of each function.

    Returns:
        sources: all of them, changed or not.

    Raises:
        ValueError: a source cannot be read; with its path and the line.
    """
    foreign = {
        f".{word}"
        for path, source in sources.items()
        for word in all_words(source) - all_words(reference.get(path, ""))
    }

    words = frozenset().union(*map(all_words, sources.values()))

    def change(path: Path, names: list[str]) -> str:
        lacking = defined(path, reference[path]) - defined(path, sources[path])
        helpers = {name for name in lacking if name.rpartition(".")[2] in words}
        counted_on = unbound(path, sources, helpers) if helpers else set()
        return fill_source(path, sources[path], starter[path], reference[path], names, foreign, counted_on)

    return each_source(sources, symbols, change)


def defined(path: Path, source: str) -> set[str]:
    """The names that a source defines."""
    return {name for chunk in split(path, source) if chunk.kind not in SHELLS for name in chunk.names}


@functools.lru_cache(maxsize=256)
def all_words(source: str) -> frozenset[str]:
    """Every word of a source, in comments too."""
    return frozenset(re.findall(r"\w+", source))


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
        reference: the package with all solved, which `fill` took from.
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
    for path in counted("writing", dict.fromkeys(path for path, _ in symbols)):
        try:
            result[path] = change(path, [name for other, name in symbols if other == path])
        except ValueError as error:
            raise ValueError(f"tiny_llm/{path}, {error}") from None
    return result


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
    keys, texts = {chunk.key for chunk in dug}, {OTHER_NAME.sub("", chunk.text) for chunk in original}
    chunks = drop_unused(
        insert(chunks, dug, added), lambda x: x.key not in keys and OTHER_NAME.sub("", x.text) in texts
    )
    unused = before.difference(*(chunk.words for chunk in chunks))
    return join(without_imports(chunks, original, unused))


def without_imports(
    chunks: Sequence[Chunk], original: Sequence[Chunk], unused: Collection[str]
) -> list[Chunk]:
    """The chunks without the imports of unused names that the original has as well."""
    known = {code for chunk in original for code in imports_of(chunk).values()}
    kept, gone = list(chunks), set()
    for i, chunk in enumerate(chunks):
        if left := {name for name, code in imports_of(chunk).items() if code in known and name in unused}:
            rest = {name: code for name, code in aliases_of(chunk).items() if name not in left}
            kept[i] = with_aliases(chunk, rest) if rest else chunk
            gone |= set() if rest else {i}
    return without(kept, gone)


def imports_of(chunk: Chunk) -> dict[str, str]:
    """What a chunk imports and from where, by the name that it binds; as if `fill` gave none another name."""
    start = chunk.label.partition("import")[0]
    aliases = aliases_of(chunk) if chunk.kind == "import" else {}
    plain = {name: OTHER_NAME.sub("", start + code) for name, code in aliases.items()}
    return {name: re.sub(r"\b(\w+) as \1$", r"\1", code) for name, code in plain.items()}
