"""The table of what the CUDA kernels take of a GPU, from the record that the tests of other machines keep."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.book.problems import ChapterError

RECORD = "cuda-kernels.json"
COLUMNS = ("registers", "shared memory", "stack")


@dataclass(frozen=True)
class Takes:
    """Of all combinations of a kernel's template arguments: registers of a thread, and at most so many bytes.

    Attributes:
        fewest_registers, most_registers: of a thread.
        shared: of a block.
        stack: of a thread, in device memory.
        spills: of a thread, for want of registers.
    """

    fewest_registers: int
    most_registers: int
    shared: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Kernel:
    """A kernel, the digest of what was compiled, and what it takes by architecture."""

    name: str
    digest: str
    takes: dict[str, Takes]


def read_kernels(file: Path) -> list[Kernel]:
    """The kernels of a record.

    Raises:
        ChapterError: there is none.
    """
    if not file.exists():
        raise ChapterError(f"there is no record {file.name}", is_missing=True)
    return [
        Kernel(each["name"], each["digest"], {name: Takes(**takes) for name, takes in each["takes"].items()})
        for each in json.loads(file.read_text(encoding="utf-8"))
    ]


def write_kernels(file: Path, kernels: Sequence[Kernel]) -> None:
    """Write a record."""
    file.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1) + "\n", encoding="utf-8")


def cuda_table(file: Path) -> str:
    """A row for each kernel, with columns for each architecture."""
    kernels = read_kernels(file)
    architectures = list(kernels[0].takes)
    head = [f"{name}: {column}" for name in architectures for column in COLUMNS]
    lines = [["kernel", *head], ["---"] * (1 + len(head))]
    for kernel in kernels:
        cells = [f"`{kernel.name}`"]
        for takes in kernel.takes.values():
            registers = {str(takes.fewest_registers): None, str(takes.most_registers): None}
            cells += [" to ".join(registers), f"{takes.shared:,}", f"{takes.stack:,}"]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
