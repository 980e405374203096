"""A source cut into chunks, whatever its language, and what can be done with a list of them."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

HOLE = re.compile(r"week (\d+) day (\d+) task (\d+): (\S+) is not written yet")
HOLE_STATEMENT = re.compile(
    rf"(?:raise NotImplementedError|NOT_WRITTEN_YET)\(\s*[\"']({HOLE.pattern})[\"']\s*,?\s*\);?"
)
COMMENT = re.compile(r"(?://|#)[^\n]*|/\*.*?\*/", re.S)
GAP = re.compile(r"(?:[ \t]*\r?\n)*")


@dataclass(frozen=True)
class Chunk:
    """What stands at the top of a source or of a Python class, with the comment right above it.

    All chunks of a source in a row are the source again to the byte.

    Args:
        gap: the blank lines above.
        text: its lines.
        kind: function, declaration, type, constant, define, undef, import, include, docstring, comment,
            plain; a Python class is chunks of its members between one that is open and one that is close.
        names: what it defines, with dots such as Reader.next.
        words: every name that its code uses; in Python an attribute with a dot in front, and what a docstring
            mentions with a backquote.
        is_private: nothing outside the file should know it.
        body: where in `text` a function's own code starts and ends, below its docstring.
        label: what it is recognized by in another version of the source, instead of its names or its text.
    """

    gap: str
    text: str
    kind: str
    names: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    is_private: bool = False
    body: tuple[int, int] | None = None
    label: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What it is recognized by in another version of the source."""
        return (self.kind, *([self.label] if self.label else self.names or self.text.split()))

    @property
    def local_names(self) -> set[str]:
        """What it defines, as `words` has it."""
        own = [name[max(name.rfind("."), 0) :] for name in self.names]
        return {*own, *(f"`{name.removeprefix('.')}" for name in own)}

    @property
    def inside(self) -> str:
        """A function's own code."""
        return self.text[slice(*self.body)] if self.body else ""

    @property
    def is_hole(self) -> bool:
        """Whether all that a function does is to say that it is not written yet."""
        return HOLE_STATEMENT.fullmatch(COMMENT.sub("", self.inside).strip()) is not None

    def with_inside(self, inside: str) -> "Chunk":
        """The same function with other code."""
        first, last = self.body or (0, 0)
        text = self.text[:first] + inside + self.text[last:]
        return replace(self, text=text, body=(first, first + len(inside)))

    def filled(self, donor: "Chunk") -> "Chunk":
        """The same hole with the donor's code instead; comments around the hole stay."""
        hole = HOLE_STATEMENT.search(self.inside)
        assert hole is not None
        above, below = self.inside[: hole.start()].rstrip(" \t"), self.inside[hole.end() :]
        inside = (above if above.strip() else "") + donor.inside + (below if below.strip() else "")
        return replace(self.with_inside(inside), words=self.words | donor.words)


def join(chunks: Sequence[Chunk]) -> str:
    """The source."""
    return "".join(chunk.gap + chunk.text for chunk in chunks)


def functions(chunks: Sequence[Chunk], name: str) -> list[int]:
    """Where a function is defined, more than once if it is overloaded."""
    return [i for i, chunk in enumerate(chunks) if chunk.kind == "function" and chunk.names == (name,)]


def is_defined(chunks: Sequence[Chunk], name: str) -> bool:
    """Whether a source defines a name."""
    return any(name in chunk.names and chunk.kind not in ("declaration", "undef") for chunk in chunks)


def classes(chunks: Sequence[Chunk]) -> dict[int, int]:
    """Where each class closes, by where it opens."""
    opening, closing = (
        [i for i, chunk in enumerate(chunks) if chunk.kind == kind] for kind in ("open", "close")
    )
    return dict(zip(opening, closing, strict=True))


def spans(chunks: Sequence[Chunk], name: str) -> list[range]:
    """Where a name is defined: a chunk, or all those of a class."""
    ends = classes(chunks)
    found = [i for i, chunk in enumerate(chunks) if name in chunk.names and chunk.kind != "close"]
    return [range(i, ends.get(i, i) + 1) for i in found]


def droppable(original: Sequence[Chunk], owned: Collection[str]) -> Callable[[Chunk], bool]:
    """A test for chunks that go once nothing uses them.

    Args:
        original: the reference's chunks; what is private there and not used anyway never goes.
        owned: names of the functions that tasks name; they never go.
    """

    def is_private(chunk: Chunk) -> bool:
        return chunk.is_private and not set(chunk.names) & set(owned)

    used = live_words(original, is_private)
    return lambda chunk: is_private(chunk) and bool(chunk.local_names & used)


def live_words(chunks: Sequence[Chunk], may_go: Callable[[Chunk], bool]) -> set[str]:
    """Every name used by what stays, by what that uses of the chunks that may go, and so on."""
    pending = list(chunks)
    words: set[str] = set()
    while live := [chunk for chunk in pending if not may_go(chunk) or chunk.local_names & words]:
        known = {id(chunk) for chunk in live}
        words.update(*(chunk.words for chunk in live))
        pending = [chunk for chunk in pending if id(chunk) not in known]
    return words


def drop_unused(chunks: Sequence[Chunk], may_go: Callable[[Chunk], bool]) -> list[Chunk]:
    """The chunks without those that may go and are unused."""
    used = live_words(chunks, may_go)
    return without(
        chunks, {i for i, chunk in enumerate(chunks) if may_go(chunk) and not chunk.local_names & used}
    )


def without(chunks: Sequence[Chunk], gone: Collection[int]) -> list[Chunk]:
    """The other chunks; of the gaps around what is gone the largest stays."""
    kept: list[Chunk] = []
    gap = ""
    for i, chunk in enumerate(chunks):
        gap = max(gap, chunk.gap, key=len)
        if i not in gone:
            if i - 1 in gone and chunk.text:
                chunk = replace(chunk, gap=gap if kept else "")
            kept.append(chunk)
            gap = ""
    return kept


def insert(chunks: Sequence[Chunk], donor: Sequence[Chunk], added: Collection[int]) -> list[Chunk]:
    """Put chunks of the donor where they stand there: after the nearest one above that both have."""
    matches = common(chunks, donor)
    added = set(added)
    for first, last in classes(donor).items():
        if any(first < i < last for i in added):
            added |= {first, last}
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
            if result and not join(result[-2:]).endswith("\n"):
                gap = ("\r\n" if "\r" in donor[i].text else "\n") + gap
            result.append(replace(donor[i], gap=gap if result else ""))
            above = i
        if following and following.text and new and place in twins:
            lines = [chunk.gap for chunk in donor[new[0] : twins[place] + 1]]
            gap = max(lines[new[-1] + 1 - new[0] :], key=len)
            if len(gap) > len(following.gap) or following.gap == max(lines, key=len):
                following = replace(following, gap=gap)  # else the learner chose it
        result += [following] if following else []
    return result


def common(chunks: Sequence[Chunk], donor: Sequence[Chunk]) -> dict[int, int]:
    """Chunks that both have, in the same order: places in the donor, and those in the chunks."""
    keys = [chunk.key for chunk in donor], [chunk.key for chunk in chunks]
    matching = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    return {a + i: b + i for a, b, size in matching for i in range(size)}
