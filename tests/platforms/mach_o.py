"""What a Mac's library asks for and offers, by its symbol table."""

import re
from dataclasses import dataclass
from pathlib import Path

from macholib import mach_o
from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

LOADS = (mach_o.LC_LOAD_DYLIB, mach_o.LC_LOAD_WEAK_DYLIB)
IS_DEBUGGING, KIND, IS_EXTERNAL, IS_PRIVATE = 0xE0, 0x0E, 0x01, 0x10  # bits of n_type
IS_WEAK = 0x80  # bit of n_desc


@dataclass(frozen=True)
class Library:
    """Names as the linker knows them, with the underscore that C's have.

    Attributes:
        undefined: what other libraries must offer, each with the library that was recorded for it; "" where
            any library of the process will do.
        exported: what it offers.
        weak: those of `exported` that macOS merges with others of the name.
        loaded: the libraries that it names.
        search_paths: where those are looked for whose name begins with @rpath.
    """

    undefined: dict[str, str]
    exported: set[str]
    weak: set[str]
    loaded: list[str]
    search_paths: list[str]


def read_library(path: Path) -> Library:
    """Read a library that holds code for one processor."""
    file = MachO(str(path))
    commands = file.headers[0].commands
    loaded = [text_of(data) for load, _, data in commands if load.cmd in LOADS]
    search_paths = [text_of(data) for load, _, data in commands if load.cmd == mach_o.LC_RPATH]
    library = Library({}, set(), set(), loaded, search_paths)
    for entry, symbol in SymbolTable(file).nlists:
        name = symbol if isinstance(symbol, str) else symbol.decode()
        if entry.n_type & IS_DEBUGGING or not entry.n_type & IS_EXTERNAL:
            continue
        if not entry.n_type & KIND:
            number = entry.n_desc >> 8 & 0xFF  # from 1 on
            library.undefined[name] = loaded[number - 1] if 1 <= number <= len(loaded) else ""
        elif not entry.n_type & IS_PRIVATE:
            library.exported.add(name)
            if entry.n_desc & IS_WEAK:
                library.weak.add(name)
    return library


def text_of(data: bytes) -> str:
    """The text at the end of a load command, which is filled up with zeros."""
    return data.rstrip(b"\0").decode()


def names_in_stub(path: Path) -> set[str]:
    """All names that a text-based stub of a library holds."""
    return set(re.findall(r"[\w$.]+", path.read_text(encoding="utf-8")))


def write_stub(path: Path, library: str, names: set[str]) -> None:
    """A text-based stub of a library, which stands for it when others are linked."""
    targets, symbols = "targets: [ arm64-macos ]", ", ".join(f"'{name}'" for name in sorted(names))
    path.write_text(
        f"--- !tapi-tbd\ntbd-version: 4\n{targets}\ninstall-name: '{library}'\n"
        f"exports:\n  - {targets}\n    symbols: [ {symbols} ]\n...\n"
    )
