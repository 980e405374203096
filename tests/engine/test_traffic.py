"""What the GPU kernels ask for, as the emulator counts it: hardly more than their tiles need.

The appendix of the book shows the counts. After a change of a kernel, this file writes them:
`python -m pytest --ref tests/engine/test_traffic.py --record-counts`.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx
import pytest

from kernel_runtime.counting import counting
from kernel_runtime.launch import Language, Target
from scripts.book.counts import RECORD, CountedKernel, Product, read_counts, write_counts
from scripts.course import ROOT
from tests.engine.test_tiled_matmul import short_weights
from tests.support.check import check_equal, normal
from tiny_llm.kernels.given.gpu_operations import quantized_matmul_gpu
from tiny_llm.kernels.given.tiled_matmul import multiply_tiles

FILE = ROOT / "book" / "records" / RECORD
LIMIT = 1.1  # of the bytes that the tiles need
LEAST_MATRIX_SHARE = 0.95
ON_MATRIX_UNITS = ("tiled_matmul",)
LAYOUTS = [(4, 64), (4, 128), (8, 32)]  # bits and group sizes; the book shows the first
LANGUAGES: tuple[Language, ...] = ("metal", "cuda")
Case = tuple[Callable[..., mx.array], tuple[int, int, int], tuple[int, int]]
CASES: Mapping[str, Case] = {  # M, N and K; rows and columns that read x and weights once
    "quantized_matvec": (quantized_matmul_gpu, (8, 16, 1024), (8, 1)),
    "quantized_matmul": (quantized_matmul_gpu, (64, 64, 256), (32, 32)),
    "tiled_matmul": (multiply_tiles, (128, 128, 256), (64, 64)),
}


def count(name: str, language: Language, bits: int, group_size: int) -> CountedKernel:
    """What one run in float16 asks for."""
    multiply, (M, N, K), tile = CASES[name]
    x, weights = normal(M, K, seed=1, dtype=mx.float16), short_weights(N, K, bits, group_size, mx.float16)
    with counting() as runs:
        multiply(x, weights, Target(language, "emulator"))
    ((kernel, counts),) = ((run.kernel, run.counts) for run in runs)
    check_equal(kernel, name, "kernel")
    names = ("requested", "bank_conflicts", "lanes", "idle_lanes", "matrix_products", "scalar_products")
    product = Product(M, N, K, bits, group_size)
    return CountedKernel(name, language, *tile, product, *(getattr(counts, each) for each in names))


@pytest.mark.parametrize(("bits", "group_size"), LAYOUTS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kernel_asks_for_little_more_than_its_tiles_need(
    language: Language, name: str, bits: int, group_size: int
) -> None:
    counted = count(name, language, bits, group_size)
    assert 1 <= counted.ratio <= LIMIT, f"{counted.ratio:.3f} times the bytes that the tiles need"
    assert counted.bank_conflicts == 0
    assert name not in ON_MATRIX_UNITS or counted.matrix_share >= LEAST_MATRIX_SHARE, counted.matrix_share


def test_the_record_is_current(pytestconfig: pytest.Config) -> None:
    counted = [count(name, language, *LAYOUTS[0]) for name in CASES for language in LANGUAGES]
    if pytestconfig.getoption("--record-counts"):
        write_counts(FILE, counted)
    assert read_counts(FILE) == counted, "the head of this file says how to record the counts"
