"""The whole text of a Metal or CUDA source: MLX and the emulator look for none of its headers themselves."""

import re
from collections.abc import Iterator
from pathlib import Path

from kernel_runtime.native import BuildError

INCLUDE = re.compile(r'#include "(.+)"')


def whole_source(file: Path) -> str:
    """The text of a source, with each header beside it that it includes in its place, once.

    Compilers name each line by its own file.

    Raises:
        BuildError: an included header does not exist.
    """
    return "\n".join(lines_of(file, set())) + "\n"


def lines_of(file: Path, seen: set[Path]) -> Iterator[str]:
    """The lines of a source and of the headers that were not seen yet."""
    seen.add(file)
    yield f'#line 1 "{file.name}"'
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match is None:
            yield line
            continue
        header = file.with_name(match[1])
        if not header.is_file():
            raise BuildError(f'{file.name}:{number} includes "{match[1]}", which is not beside it')
        if header not in seen:
            yield from lines_of(header, seen)
        yield f'#line {number + 1} "{file.name}"'
