"""The files of a package: which are its sources, and where a symbol of course.toml is."""

from collections.abc import Mapping
from pathlib import Path

from scripts.course import ROOT

REFERENCE = ROOT / "tiny_llm_ref"
SHARED = ROOT / "kernel_runtime"
HEADERS = (".h", ".cuh")
SUFFIXES = (".py", ".cpp", ".metal", ".cu", *HEADERS)  # of a package's sources
Sources = dict[Path, str]
"""Sources of a package by their path within it."""
Symbol = tuple[Path, str]
"""A path within the package, and a dotted name in that source."""


def read_reference() -> Sources:
    """Sources of the reference."""
    files = source_files(REFERENCE)
    return {path.relative_to(REFERENCE): path.read_text(encoding="utf-8") for path in files}


def source_files(package: Path) -> list[Path]:
    """The files of a package that are its sources."""
    return sorted(path for path in package.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def write(sources: Mapping[Path, str], package: Path) -> None:
    """Write sources into a folder, made if it is not there, with the line ends that they have."""
    for path, source in sources.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.encode())


def is_python(path: Path) -> bool:
    """Whether a source is Python; if not it is C++, Metal or CUDA."""
    return path.suffix == ".py"


def module_name(path: Path) -> str:
    """The dotted name of a source, as course.toml writes it."""
    return ".".join(path.with_suffix("").parts)


def find_symbol(symbol: str, package: Path = REFERENCE) -> Symbol:
    """The source of a package that a symbol of course.toml is in, and its dotted name there.

    Raises:
        KeyError: there is no such source.
    """
    parts = symbol.split(".")
    for length in range(len(parts) - 1, 0, -1):
        for suffix in SUFFIXES:
            path = Path(*parts[:length]).with_suffix(suffix)
            if (package / path).is_file():
                return path, ".".join(parts[length:])
    raise KeyError(symbol)
