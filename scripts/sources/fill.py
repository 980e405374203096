"""One source filled: the reference's solutions in the place of holes, with what they need and nothing else.

What the starter has is shared: a solution uses it as the learner has it. All else that a solution uses is a
helper, whether function, method, constant or import. It comes along unless the learner has the very same;
where they use its name for something else, it comes under another. A helper that the learner's code calls
and lacks keeps its name.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.sources.chunks import Chunk, functions, insert, join, spans
from scripts.sources.files import is_python
from scripts.sources.imports import aliases_of, with_aliases
from scripts.sources.symbols import holes_of, split, split_like, words_of
from scripts.sources.tokens import canonical

OTHER_NAME = re.compile(r"_(?:ref|REF)(\d*)\b")


def fill_source(
    path: Path,
    source: str,
    starter: str,
    reference: str,
    names: Collection[str],
    foreign: set[str],
    counted_on: set[str],
) -> str:
    """A source with the reference's functions for those that are holes or not there, and what these need.

    Args:
        names: functions that the starter has.
        foreign: attributes, each with a dot in front, that the package uses in its own way.
        counted_on: helpers of the reference that the package uses and does not define. They keep their
            names, and those that the learner's own `names` use come along.

    Raises:
        ValueError: a source cannot be read; with the line.
    """
    chunks, donated = list(split(path, source)), split_like(path, reference, source)
    given = {name for chunk in split(path, starter) if chunk.kind != "import" for name in chunk.names}
    unasked = holes_of(path, starter).keys() - names
    texts = {chunk.text for chunk in donated}
    own = [chunk for chunk in chunks if not chunk.is_hole and chunk.text not in texts]
    loose = {word for chunk in own if chunk.kind == "plain" for word in re.findall(r"\w+", chunk.text)}
    theirs, ours = definitions(chunks), definitions(donated)
    bound = theirs.keys() | loose
    holes, missing = holes_and_missing(chunks, donated, names, bound)
    written = [chunk for chunk in chunks if chunk.kind == "function" and {*chunk.names} & {*names}]
    missing |= {
        name
        for name in counted_on & ours.keys() - given - bound
        if any(uses(chunk, name, set(ours)) for chunk in written)
    }
    if not holes and not missing:
        return source
    bodies = [replace(donated[i], words=words_of(path, donated[i].inside)) for i in holes.values()]
    needed = names_needed(donated, bodies, missing, given, given & bound | unasked)
    lacking = {
        name for name in needed if codes(path, name, theirs.get(name, [])) != codes(path, name, ours[name])
    }
    imported = {name for chunk in donated if chunk.kind == "import" for name in chunk.names}
    used = foreign.union(*(chunk.local_names | chunk.words for chunk in own))
    clashing = {
        name
        for name in lacking - given
        if name in bound or (name not in imported | counted_on and local(name) in used)
    }
    if clashing:
        from scripts.sources.rename import renamed  # which takes longer to import than all of this to run

        other_names = {local(name): other_name(local(name)) for name in clashing}
        reference = renamed(path, reference, other_names)
        return fill_source(path, source, starter, reference, names, foreign, counted_on)
    for place, i in holes.items():
        chunks[place] = chunks[place].filled(donated[i])
    return completed(chunks, donated, lacking)


def local(name: str) -> str:
    """A name as code uses it: of a method with a dot in front."""
    return name[max(name.rfind("."), 0) :]


def other_name(name: str) -> str:
    """The next name for a helper whose own is taken: `_rows`, `_rows_ref`, `_rows_ref2`."""
    match = OTHER_NAME.search(name)
    number = str(int(match[1] or 1) + 1) if match else ""
    start = OTHER_NAME.sub("", name)
    return f"{start}_{'REF' if start.isupper() else 'ref'}{number}"


def definitions(chunks: Iterable[Chunk]) -> Mapping[str, list[Chunk]]:
    """What defines each name; more than one chunk if it is overloaded."""
    found: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        for name in chunk.names if chunk.kind != "close" else ():
            found[name].append(chunk)
    return dict(found)


def codes(path: Path, name: str, chunks: Iterable[Chunk]) -> list[str]:
    """How chunks define a name, without formatting and comments."""
    return [
        f"{chunk.label} {aliases_of(chunk)[name]}"
        if chunk.kind == "import"
        else f"{chunk.label} {canonical(chunk.text, is_python(path))}"
        for chunk in chunks
    ]


def holes_and_missing(
    chunks: Sequence[Chunk], reference: Sequence[Chunk], names: Collection[str], bound: set[str]
) -> tuple[dict[int, int], set[str]]:
    """The place of each hole and of its solution; and functions and classes that are gone."""
    holes: dict[int, int] = {}
    for name in names:
        pairs = zip(functions(chunks, name), functions(reference, name), strict=False)
        holes |= {place: i for place, i in pairs if chunks[place].is_hole}
    missing = set(names) - bound
    return holes, missing | {name.rpartition(".")[0] for name in missing} - bound - {""}


def names_needed(
    reference: Sequence[Chunk],
    bodies: Sequence[Chunk],
    missing: set[str],
    given: set[str],
    shared: set[str],
) -> set[str]:
    """What is missing, what that and some bodies use, what this uses, and so on, but nothing shared.

    A class that is not shared comes with all members that are given.
    """
    defined = {name for chunk in reference for name in chunk.names}
    found: set[str] = set()
    users, new = list(bodies), set(missing)
    while users or new:
        new |= {name for name in defined if any(uses(user, name, defined) for user in users)}
        new |= {name for name in given & defined if name.rpartition(".")[0] in new - shared}
        new -= shared | found
        users = [chunk for chunk in reference if new.intersection(chunk.names) and chunk.kind != "import"]
        found.update(new, *(chunk.names for chunk in users))
        new = set()
    return found


def uses(user: Chunk, name: str, defined: set[str]) -> bool:
    """Whether a chunk means a name of its source; an attribute is its own class's if that has such a one."""
    owner, own_class = (each.rpartition(".")[0] for each in (name, *(user.names or ("",))[:1]))
    is_of_another = owner not in ("", own_class) and f"{own_class}{local(name)}" in defined
    return local(name) in user.words and not is_of_another


def completed(chunks: Sequence[Chunk], reference: Sequence[Chunk], lacking: set[str]) -> str:
    """The source with what it lacks of the reference, each definition where it stands there."""
    result, donated = list(chunks), list(reference)
    keys = {chunk.key for chunk in chunks}
    added = {i for i, chunk in enumerate(reference) if chunk.kind == "include" and chunk.key not in keys}
    added |= {
        i for name in lacking for span in spans(reference, name) for i in span if not reference[i].names
    }
    for i, chunk in enumerate(reference):
        new = lacking.intersection(chunk.names)
        if chunk.kind != "import":
            added |= {i} if new else set()
        elif new:
            donated[i] = with_aliases(chunk, {name: aliases_of(chunk)[name] for name in new})
            added |= set() if is_imported(result, chunk, donated[i]) else {i}
    return join(insert(result, donated, added))


def is_imported(chunks: list[Chunk], original: Chunk, new: Chunk) -> bool:
    """Import more from a module that the chunks import from already, and return whether they do.

    A line that the course wrote gets the names; one that the learner wrote gets a line below.
    """
    twins = [i for i, chunk in enumerate(chunks) if chunk.key == original.key]
    for i in twins:
        names = aliases_of(chunks[i])
        if names.keys() <= set(original.names) and with_aliases(chunks[i], names) == chunks[i]:
            chunks[i] = with_aliases(chunks[i], names | aliases_of(new))
            return True
    for i in twins[-1:]:
        chunks.insert(i + 1, replace(new, gap=""))
    return bool(twins)
