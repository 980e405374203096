"""Put single functions of one package into another, with what they need, and leave the rest as it is.

`fill` writes solutions into holes, `dig` makes holes again. Both map sources to sources.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.sources.chunks import (
    Chunk,
    drop_unused,
    droppable,
    functions,
    insert,
    is_defined,
    join,
    spans,
    without,
)
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
    result = dict(sources)
    words: dict[Path, set[str]] = {}
    for path, names in names_by_path(symbols).items():
        with named(path):
            result[path], words[path] = fill_bodies(path, result[path], donor[path], names)
    while words:
        path, used = words.popitem()
        if not used:
            continue
        result[path], imports = supply(path, result[path], donor[path], used)
        for label, name in imports:
            file = imported_file(path, label, result)
            if file is not None and not is_defined(split(file, result[file]), name):
                words.setdefault(file, set()).add(name)
    return result


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
        starter: the reference with all its holes, and all else still there.
        reference: the package that `fill` took from.
        symbols: path of the module and dotted name of each function.

    Raises:
        ValueError: a symbol is there, but is no function any more, or a source cannot be read.
    """
    result = dict(sources)
    for path, names in names_by_path(symbols).items():
        with named(path):
            result[path] = dig_source(path, result[path], starter[path], reference[path], names)
    return result


def names_by_path(symbols: Collection[Symbol]) -> dict[Path, list[str]]:
    """Of each source the names asked for."""
    found: dict[Path, list[str]] = {}
    for path, name in symbols:
        found.setdefault(path, []).append(name)
    return found


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the file's name before the sentence of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"tiny_llm/{path}, {error}") from None


def split_like(path: Path, text: str, source: str) -> list[Chunk]:
    """The chunks of a text, with line ends as the source has them."""
    text = text.replace("\r\n", "\n")
    return list(split(path, text.replace("\n", "\r\n") if "\r\n" in source else text))


def fill_bodies(path: Path, source: str, donor: str, names: Collection[str]) -> tuple[str, set[str]]:
    """A source with the donor's functions for those that are holes or not there; and the words of these."""
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
    words.update(*(donated[i].words for i in added))
    return join(insert(chunks, donated, added)), words


def with_its_class(chunks: Sequence[Chunk], donor: Sequence[Chunk], index: int) -> set[int]:
    """A chunk of the donor, with the rest of the class that it opens or that the chunks lack."""
    name = donor[index].names[0]
    owner = name if donor[index].kind == "open" else name.rpartition(".")[0]
    return {index}.union(*([] if is_defined(chunks, owner) else spans(donor, owner)))


def supply(path: Path, source: str, donor: str, words: set[str]) -> tuple[str, list[tuple[str, str]]]:
    """Bring what code with these words needs of the donor and the source lacks, and what that needs.

    Returns:
        source: with definitions and imports.
        imports: the words in front of each name that is imported now, and the name.
    """
    chunks, donated = list(split(path, source)), split_like(path, donor, source)
    keys = {chunk.key for chunk in chunks}
    bound = {name for chunk in chunks if chunk.kind != "declaration" for name in chunk.names}
    added = {i for i, chunk in enumerate(donated) if chunk.kind == "include" and chunk.key not in keys}
    words = set(words)
    while (
        needed := {
            each
            for i, chunk in enumerate(donated)
            if chunk.local_names & words and chunk.kind not in ("import", "close") and chunk.key not in keys
            if not set(chunk.names) & bound and (chunk.is_private or "." not in chunk.names[0])
            for each in with_its_class(chunks, donated, i)
        }
        - added
    ):
        added |= needed
        words.update(*(donated[i].words for i in needed))
    imports = []
    for i, chunk in enumerate(donated):
        if chunk.kind == "import" and (names := words.intersection(chunk.names) - bound):
            lacking = {name: code for name, code in aliases_of(chunk).items() if name in names}
            imports += [(chunk.label, code.split()[0]) for code in lacking.values()]
            twin = next((j for j, each in enumerate(chunks) if each.key == chunk.key), None)
            if twin is None:
                donated[i] = with_aliases(chunk, lacking)
                added.add(i)
            else:
                chunks[twin] = with_aliases(chunks[twin], {**aliases_of(chunks[twin]), **lacking})
    return join(insert(chunks, donated, added)), imports


def imported_file(path: Path, label: str, sources: Mapping[Path, str]) -> Path | None:
    """The file of the package that `from .module import` takes names from; None if it is none of them."""
    match = re.match(r"from (\.+)(\w[\w.]*) import", label)
    if match is None:
        return None
    module = path.parents[min(len(match[1]), len(path.parents)) - 1].joinpath(*match[2].split("."))
    return next(
        (file for file in (module.with_suffix(".py"), module / "__init__.py") if file in sources), None
    )


def dig_source(path: Path, source: str, starter: str, reference: str, names: Collection[str]) -> str:
    """A source with the starter's text of these functions, without what `fill` brought for them."""
    chunks, dug = list(split(path, source)), split_like(path, starter, source)
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
            elif not dug[index].is_private or "." not in name:
                added |= with_its_class(chunks, dug, index)
    original = split_like(path, reference, source)
    asked = {chunk.names[0] for chunk in dug if chunk.is_hole and "." not in chunk.names[0]}
    is_droppable, texts = droppable(original, asked), {chunk.text for chunk in original}

    def may_go(chunk: Chunk) -> bool:
        return is_droppable(chunk) and (chunk.text in texts or chunk.is_hole)

    chunks = drop_unused(insert(chunks, dug, added), may_go)
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
