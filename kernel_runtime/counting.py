"""What kernels ask of a GPU, counted by the emulator: bytes, bank conflicts, idle lanes, matrix products.

A counted kernel is compiled anew, with a `float` that counts its products, and runs slowly. The rules:

- What the lanes of a SIMD group do by one instruction, in one of its turns, is one access. Bytes that several
  lanes ask for in it count once. Registers are free, and so is what the compiler keeps in them.
- There is no cache: a byte that is asked for again counts again. `by_groups` is what remains if each group of
  threads asks for each byte once, `once` if the whole run does, as with a cache that holds everything.
- Shared memory has 32 banks of 4 bytes, as on NVIDIA's GPUs. Apple doesn't say what its GPUs have.
- A product is a multiplication or division of floats, with or without an addition. Those of matrix units
  include padding.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure, c_uint64
from dataclasses import dataclass, fields

FLOAT_LITERAL = re.compile(r"\b(\d+\.\d*(?:e[-+]?\d+)?f|INFINITY)\b")


@dataclass(frozen=True)
class Traffic:
    """Bytes of device memory.

    Attributes:
        requested: by all accesses.
        by_groups: if each group of threads asks for each byte once.
        once: if the whole run does.
    """

    requested: int
    by_groups: int
    once: int


@dataclass(frozen=True)
class Counts:
    """What one run of a kernel asks of a GPU.

    Attributes:
        read, written: device memory.
        accesses: to device memory, of SIMD groups.
        sectors: of 32 bytes that these accesses touch: memory hands out no less.
        shared_accesses: to shared memory, of SIMD groups.
        bank_conflicts: rounds that shared memory takes for them beyond those of accesses without conflicts.
        lanes, idle_lanes: that take part in an access, and that don't although their SIMD group does.
        matrix_products, scalar_products: multiplications of floats.
    """

    read: Traffic
    written: Traffic
    accesses: int
    sectors: int
    shared_accesses: int
    bank_conflicts: int
    lanes: int
    idle_lanes: int
    matrix_products: int
    scalar_products: int

    @property
    def requested(self) -> int:
        """Bytes read and written."""
        return self.read.requested + self.written.requested

    @property
    def matrix_share(self) -> float:
        """The part of all products that matrix units compute."""
        return self.matrix_products / max(1, self.matrix_products + self.scalar_products)


@dataclass(frozen=True)
class CountedRun:
    """A kernel's name and what its run asked for."""

    kernel: str
    counts: Counts


class CountsInMemory(Structure):
    """Counts of counts.h."""

    NAMES = [field.name for field in fields(Counts)][2:]
    _fields_ = [("traffic", c_uint64 * 6), *((name, c_uint64) for name in NAMES)]

    def read(self) -> Counts:
        """The counts."""
        return Counts(
            Traffic(*self.traffic[:3]),
            Traffic(*self.traffic[3:]),
            *(getattr(self, name) for name in self.NAMES),
        )


_runs: list[list[CountedRun]] = []


@contextmanager
def counting() -> Iterator[Sequence[CountedRun]]:
    """Count what each run of a kernel by the emulator asks for: a list, to which every run is added."""
    runs: list[CountedRun] = []
    _runs.append(runs)
    try:
        yield runs
    finally:
        _runs.pop()


def is_counting() -> bool:
    """Whether kernels are counted."""
    return bool(_runs)


def note_run(kernel: str, counts: Counts) -> None:
    """Add a run to what is counted."""
    _runs[-1].append(CountedRun(kernel, counts))


def with_counted_literals(text: str) -> str:
    """A kernel's source in which literals are of the type that counts its products."""
    return FLOAT_LITERAL.sub(r"float(\1)", text)
