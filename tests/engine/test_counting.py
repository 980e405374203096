"""What the emulator counts, by small kernels of which every number is known."""

from pathlib import Path

import mlx.core as mx
import pytest

from kernel_runtime.counting import Counts, Traffic, counting
from kernel_runtime.launch import BACKWARD, FORWARD, Language
from tests.engine.test_emulated_matrices import SIZES, matrices, multiply
from tests.engine.test_emulator import LANGUAGES, REVERSE, make_probe, run
from tests.support.check import check_close, check_equal, normal


def counts_of(
    folder: Path, language: Language, body: str, size: int = 64, groups: int = 1, order: int = FORWARD
) -> Counts:
    """What a probe of float32 asks for; its result must be that of a run that isn't counted."""
    kernel = make_probe(folder, language, body, (mx.float32,), 2048)
    with counting() as runs:
        counted = run(kernel, language, order, size=size, groups=groups)
    check_close(counted, run(kernel, language, order, size=size, groups=groups), "result", 1e-6)
    ((name, counts),) = ((each.kernel, each.counts) for each in runs)
    check_equal(name, "probe", "kernel")
    return counts


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("order", [FORWARD, BACKWARD, 2])
def test_each_number_of_a_kernel_that_reverses(language: Language, order: int, tmp_path: Path) -> None:
    body = REVERSE.replace("i]", "at]").replace("tile[at]", "tile[i]").replace("63 - at", "63 - i")
    expected = Counts(
        read=Traffic(512, 512, 512),
        written=Traffic(512, 512, 512),
        accesses=8,
        sectors=32,
        shared_accesses=8,
        bank_conflicts=0,
        lanes=16 * 32,
        idle_lanes=0,
        matrix_products=0,
        scalar_products=0,
    )
    check_equal(counts_of(tmp_path, language, body, 128, 2, order), expected, "counts of two groups")


@pytest.mark.parametrize(
    ("place", "expected", "sectors"),
    [
        ("at", (512, 512, 512), 16),
        ("i", (512, 512, 256), 16),  # both groups read the same
        ("i / 32", (16, 16, 8), 4),  # all lanes of a SIMD group read the same
        ("0", (16, 8, 4), 4),
        ("at / 32 * 32 + lane / 4 * 4", (128, 128, 128), 16),
    ],
)
def test_bytes_that_are_read(
    place: str, expected: tuple[int, int, int], sectors: int, tmp_path: Path
) -> None:
    counts = counts_of(tmp_path, "metal", f"out[at] = x[{place}];", 128, 2)
    check_equal((counts.read, counts.sectors), (Traffic(*expected), 16 + sectors), "bytes and sectors")


def test_a_second_pass_counts_again(tmp_path: Path) -> None:
    body = "float sum = 0; for (int k = 0; k < n; k += 32) sum += x[k + lane]; BARRIER out[i] = sum + x[i];"
    read = counts_of(tmp_path, "cuda", body).read
    check_equal(read, Traffic(2 * 256 + 256, 256, 256), "bytes read by two SIMD groups")


@pytest.mark.parametrize(
    ("place", "conflicts"),
    [
        ("i", 0),
        ("2 * i", 2 * 1),
        ("33 * lane + simd_group", 0),
        ("32 * lane + simd_group", 2 * 31),
        ("8 * lane + simd_group", 2 * 7),
        ("lane / 2 * 32 + simd_group", 2 * 15),  # two lanes share each word
    ],
)
def test_bank_conflicts(place: str, conflicts: int, tmp_path: Path) -> None:
    counts = counts_of(tmp_path, "metal", f"out[i] = x[i]; tile[{place}] = 1;")
    check_equal((counts.shared_accesses, counts.bank_conflicts), (2, conflicts), "accesses and rounds on top")


@pytest.mark.parametrize(("stride", "conflicts"), [(4, 0), (8, 1), (36, 0), (32, 7)])
def test_bank_conflicts_of_wide_accesses(stride: int, conflicts: int, tmp_path: Path) -> None:
    """Eight lanes at a time have 16 bytes each; those of lane k begin at word k x stride."""
    body = f"out[i] = x[i]; *(threadgroup float4*)(tile + lane * {stride}) = float4(1.0f);"
    counts = counts_of(tmp_path, "metal", body)
    check_equal(counts.bank_conflicts, 2 * 4 * conflicts, "rounds on top of eight times eight lanes")


def test_lanes_that_are_idle(tmp_path: Path) -> None:
    counts = counts_of(tmp_path, "cuda", "float y = 1; if (i < 40) y = x[i]; out[i] = y;")
    check_equal((counts.lanes, counts.idle_lanes), (40 + 64, 24), "lanes of three accesses, one of 8 lanes")


@pytest.mark.parametrize("language", LANGUAGES)
def test_products(language: Language, tmp_path: Path) -> None:
    body = "float y = x[i]; y = y * factor - 2.5f; out[i] = i < 10 ? y / 3 : (1.0f + y) * x[i] * 0.5f;"
    counts = counts_of(tmp_path, language, body)
    check_equal(counts.scalar_products, 64 + 10 + 2 * 54, "products of floats")
    kernel, size = multiply(language, tmp_path, False), SIZES[language]
    with counting() as runs:
        run(kernel, language, FORWARD, matrices(language), size**2)
    (counted,) = runs
    check_equal(counted.counts.matrix_products, 2 * size**3, "products of two SIMD groups")
    check_equal((counted.counts.scalar_products, counted.counts.matrix_share), (0, 1.0), "all others")


def test_runs_are_counted_only_inside(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", "out[i] = x[i];")
    with counting() as runs:
        for _ in range(2):
            run(kernel, "metal")
    run(kernel, "metal", x=normal(64, seed=2))
    check_equal([each.kernel for each in runs], ["probe", "probe"], "counted runs")
