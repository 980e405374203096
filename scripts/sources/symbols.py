"""What is to be known of a symbol in any of the four languages."""

from pathlib import Path

from scripts.sources import c_source, python_source
from scripts.sources.chunks import HOLE, HOLE_STATEMENT, Chunk, join, spans
from scripts.sources.files import is_python


def split(path: Path, source: str) -> tuple[Chunk, ...]:
    """The chunks of a source, in order; ValueError with the line if it cannot be read."""
    return python_source.split(source) if is_python(path) else c_source.split(source)


def holes_of(path: Path, source: str) -> dict[str, str]:
    """The sentence of each hole of a source, by the function's dotted name."""
    if HOLE.search(source) is None:
        return {}
    if not is_python(path):
        return c_source.holes(source)
    dug = [chunk for chunk in python_source.split(source) if chunk.is_hole]
    return {chunk.names[0]: hole[1] for chunk in dug if (hole := HOLE_STATEMENT.search(chunk.inside))}


def definition_of(path: Path, source: str, name: str) -> str:
    """The text that defines a dotted name, as it is indented, with the comment right above it.

    Raises:
        KeyError: the source does not define it.
    """
    chunks = split(path, source)
    found = spans(chunks, name)
    if not found:
        raise KeyError(name)
    return "".join(join(chunks[span.start : span.stop])[len(chunks[span.start].gap) :] for span in found)
