"""The tables of what GPU kernels ask for: their numbers, from a record of small ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.book.counts import (
    BOUNDS,
    CHUNK,
    GPUS,
    Attention,
    CountedKernel,
    Product,
    counts_tables,
    read_counts,
    seconds,
    write_counts,
)
from scripts.book.problems import ChapterError

SMALL = Product(M=4, N=6, K=32, bits=4, group_size=32)


def kernel(name: str, requested: int, matrix_products: int) -> CountedKernel:
    return CountedKernel(name, "metal", 2, 4, SMALL, requested, 3, 96, 32, matrix_products, 100)


def test_bytes_of_tiles() -> None:
    """Two tiles of columns read 4 rows of 64 bytes, two of rows 6 columns of 16 + 4 bytes; out has 48."""
    assert SMALL.tile_bytes(2, 4) == 2 * 4 * 64 + 2 * 6 * 20 + 48


def test_bytes_of_attention() -> None:
    """Tiles of 2, 2 and 1 of 5 queries see 5, 7 and 8 tokens; 3 heads, and 4 entries of 2 bytes each."""
    work = Attention(H_q=3, H=1, L=5, S=8, D=4)
    assert work.tile_bytes(2, 32) == 3 * 4 * 2 * (2 * 5 + 2 * (5 + 7 + 8))
    assert work.least_bytes == 4 * 2 * (2 * 3 * 5 + 2 * 8)
    assert work.multiply_adds == 2 * 3 * 4 * (4 + 5 + 6 + 7 + 8)


def test_least_times() -> None:
    m2, h100 = GPUS[0], GPUS[2]
    scalar, matrix = kernel("scalar", 880, 0), kernel("matrix", 1600, 900)
    arithmetic = 2 * CHUNK.M * CHUNK.N * CHUNK.K
    assert seconds(scalar, CHUNK, h100)[0] == pytest.approx(arithmetic / 67e12)
    once = CHUNK.tile_bytes(CHUNK.M, CHUNK.N)
    assert seconds(matrix, CHUNK, h100)[0] == pytest.approx(max(arithmetic / 989e12, once / 3350e9))
    assert seconds(matrix, CHUNK, m2)[1] == pytest.approx(2 * CHUNK.tile_bytes(2, 4) / 100e9)


def test_both_tables(tmp_path: Path) -> None:
    kernels = [kernel(name, 880, 300 * name.startswith("tiled")) for name in BOUNDS]
    kernels[-1] = replace(kernels[-1], work=Attention(3, 1, 5, 8, 4), requested=1320)
    write_counts(tmp_path / "counts.json", kernels)
    assert read_counts(tmp_path / "counts.json") == kernels
    counts, bounds = counts_tables(tmp_path / "counts.json").split("\n\n")
    assert counts.splitlines()[-1] == "| `tiled_attention`, metal | 2 by 4 | 1.10 | 3 | 25.0% | 75.0% |"
    assert [line.split(" | ")[0] for line in bounds.splitlines()[2:]] == [f"| {gpu.name}" for gpu in GPUS]
    with pytest.raises(ChapterError, match="there is no record missing"):
        counts_tables(tmp_path / "missing.json")
