"""The tables of what GPU kernels ask for: counted by the emulator, and what that means for some GPUs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.book.problems import ChapterError

RECORD = "gpu-counts.json"
FLOAT_BYTES = 2  # of all arrays but packed weights


@dataclass(frozen=True)
class Product:
    """Of x [M, K] and weights [N, K]."""

    M: int
    N: int
    K: int
    bits: int
    group_size: int

    def tile_bytes(self, rows: int, columns: int) -> float:
        """Bytes if each tile of so many rows and columns of out reads what it needs once."""
        row_bytes = FLOAT_BYTES * self.K
        column_bytes = self.K * self.bits / 8 + 2 * FLOAT_BYTES * self.K / self.group_size
        row_tiles, column_tiles = -(-self.M // rows), -(-self.N // columns)
        out_bytes = FLOAT_BYTES * self.M * self.N
        return column_tiles * self.M * row_bytes + row_tiles * self.N * column_bytes + out_bytes

    @property
    def least_bytes(self) -> float:
        """Bytes if everything is read once."""
        return self.tile_bytes(self.M, self.N)

    @property
    def multiply_adds(self) -> int:
        """Of the whole product."""
        return self.M * self.N * self.K


@dataclass(frozen=True)
class Attention:
    """Causal attention of L queries, the last of S tokens, with H_q heads and H key heads of D; `block_size`
    is that of the blocks in which keys and values lie, 0 if they are dense."""

    H_q: int
    H: int
    L: int
    S: int
    D: int
    block_size: int = 0

    def tile_bytes(self, rows: int, columns: int) -> float:
        """Bytes if each tile of so many queries of a head reads the keys and values that it sees once.

        How many of them it reads at a time, which are its columns, makes no difference.
        """
        seen = [self.S - self.L + min(self.L, first + rows) for first in range(0, self.L, rows)]
        return FLOAT_BYTES * self.D * self.H_q * (2 * self.L + 2 * sum(seen))

    @property
    def least_bytes(self) -> float:
        """Bytes if everything is read once."""
        return FLOAT_BYTES * self.D * (2 * self.H_q * self.L + 2 * self.H * self.S)

    @property
    def multiply_adds(self) -> int:
        """Of the keys that the queries see."""
        return 2 * self.D * self.H_q * sum(range(self.S - self.L + 1, self.S + 1))


Work = Product | Attention


@dataclass(frozen=True)
class CountedKernel:
    """What a kernel asked for: see `Counts` in kernel_runtime/counting.py."""

    name: str
    language: str
    rows: int
    columns: int
    work: Work
    requested: int
    bank_conflicts: int
    lanes: int
    idle_lanes: int
    matrix_products: int
    scalar_products: int

    @property
    def ratio(self) -> float:
        """Bytes asked for per byte that the tiles need."""
        return self.requested / self.work.tile_bytes(self.rows, self.columns)

    @property
    def matrix_share(self) -> float:
        """The part of all products that matrix units compute."""
        return self.matrix_products / (self.matrix_products + self.scalar_products)


@dataclass(frozen=True)
class Gpu:
    """Peaks of a GPU: multiply-adds as two operations, in TFLOP/s, and GB/s of memory."""

    name: str
    scalar: float
    matrix: float
    bandwidth: float


GPUS = (
    Gpu("M2, 10 cores", 3.6, 3.6, 100),
    Gpu("M4 Max, 40 cores", 17.2, 17.2, 546),
    Gpu("H100 SXM", 67, 989, 3350),
    Gpu("H200 SXM", 67, 989, 4800),
)
CHUNK = Product(512, 4096, 4096, 4, 64)
TOKEN = Product(1, 4096, 4096, 4, 64)
ATTENDING = Attention(H_q=32, H=8, L=512, S=4096, D=128)
BOUNDS: Mapping[str, Work] = {
    "quantized_matmul": CHUNK,
    "tiled_matmul": CHUNK,
    "quantized_matvec": TOKEN,
    "tiled_attention": ATTENDING,
}


def read_counts(file: Path) -> list[CountedKernel]:
    """The kernels of a record.

    Raises:
        ChapterError: there is none.
    """
    if not file.exists():
        raise ChapterError(f"there is no record {file.name}", is_missing=True)
    entries = json.loads(file.read_text(encoding="utf-8"))
    return [CountedKernel(**{**entry, "work": read_work(entry["work"])}) for entry in entries]


def read_work(sizes: Mapping[str, int]) -> Work:
    """What a kernel computed, by the names of its sizes."""
    return Attention(**sizes) if "H_q" in sizes else Product(**sizes)


def write_counts(file: Path, kernels: Sequence[CountedKernel]) -> None:
    """Write a record."""
    file.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1) + "\n", encoding="utf-8")


def counts_tables(file: Path) -> str:
    """What each kernel asks for, and how long it would take at least on each GPU."""
    kernels = read_counts(file)
    return f"{counts_table(kernels)}\n\n{bounds_table(kernels)}"


def counts_table(kernels: Sequence[CountedKernel]) -> str:
    """A row for each kernel and language."""
    lines = [
        ["kernel", "tile", "bytes asked for / needed", "bank conflicts", "idle lanes", "on matrix units"]
    ]
    for kernel in kernels:
        lines.append(
            [
                f"`{kernel.name}`, {kernel.language}",
                f"{kernel.rows} by {kernel.columns}",
                f"{kernel.ratio:.2f}",
                f"{kernel.bank_conflicts:,}",
                f"{kernel.idle_lanes / (kernel.lanes + kernel.idle_lanes):.1%}",
                f"{kernel.matrix_share:.1%}",
            ]
        )
    return table(lines)


def bounds_table(kernels: Sequence[CountedKernel]) -> str:
    """A row for each GPU."""
    chosen = {kernel.name: kernel for kernel in kernels}
    lines = [["GPU", "TFLOP/s, by matrix units", "GB/s", *(f"`{name}`" for name in BOUNDS)]]
    for gpu in GPUS:
        cells = [gpu.name, f"{gpu.scalar:g}, {gpu.matrix:g}", f"{gpu.bandwidth:,g}"]
        for name, work in BOUNDS.items():
            bounds = [f"{1e6 * each:,.0f}" for each in seconds(chosen[name], work, gpu)]
            cells.append(f"{' to '.join(dict.fromkeys(bounds))} µs")
        lines.append(cells)
    return table(lines)


def seconds(kernel: CountedKernel, work: Work, gpu: Gpu) -> tuple[float, float]:
    """The least time of some work: if a cache serves all but the first read of each byte, and without one."""
    peak = gpu.matrix if kernel.matrix_products else gpu.scalar
    arithmetic = 2 * work.multiply_adds / (1e12 * peak)
    requested = kernel.ratio * work.tile_bytes(kernel.rows, kernel.columns)
    return (
        max(arithmetic, work.least_bytes / (1e9 * gpu.bandwidth)),
        max(arithmetic, requested / (1e9 * gpu.bandwidth)),
    )


def table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of which the first line is the head."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
