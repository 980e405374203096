"""What is to be known of a source, whatever its language."""

from pathlib import Path

from scripts import patching_c, render_c, source_lines
from scripts.c_source import join, mask, split
from scripts.render import SUFFIXES, is_python


def holes_of(path: Path, source: str) -> dict[str, str]:
    """The sentence of each hole of a source, by the function's dotted name."""
    return source_lines.holes(source) if is_python(path) else render_c.holes(source)


def is_bound_in(path: Path, source: str, name: str) -> bool:
    """Whether a source defines a dotted name."""
    if is_python(path):
        return source_lines.is_bound(source, name)
    return patching_c.is_defined(split(source), name)


def source_of(symbol: str, package: Path) -> tuple[Path, str]:
    """The source of a package that a symbol of course.toml is in, and its dotted name there.

    Raises:
        KeyError: there is no such source.
    """
    parts = symbol.split(".")
    for length in range(len(parts) - 1, 0, -1):
        for suffix in SUFFIXES:
            path = Path(*parts[:length]).with_suffix(suffix)
            if suffix != ".h" and (package / path).is_file():
                return path, ".".join(parts[length:])
    raise KeyError(symbol)


def line_of_function(source: str, name: str) -> int | None:
    """The line at which a source that is not Python defines a function; None if it cannot be found."""
    try:
        chunks = split(source)
    except ValueError:
        return None
    found = render_c.functions(chunks, name)
    if not found:
        return None
    chunk = chunks[found[0]]
    code = mask(chunk.text)
    above = join(chunks[: found[0]]) + chunk.gap + code[: len(code) - len(code.lstrip())]
    return above.count("\n") + 1
