"""What the GPU kernels ask for, as the emulator counts it: hardly more than their tiles need.

The appendix of the book shows the counts. After a change of a kernel, this file writes them:
`python -m pytest --ref tests/engine/test_traffic.py --record-counts`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

from accelerated.tiled_attention import attend_tiles
from accelerated.tiled_matmul import multiply_tiles
from kernel_runtime.counting import counting
from kernel_runtime.launch import Language, Target
from scripts.book.counts import RECORD, Attention, CountedKernel, Product, Work, read_counts, write_counts
from scripts.course import ROOT
from tests.engine.test_tiled_attention import attend_blocks
from tests.engine.test_tiled_matmul import short_weights
from tests.support.check import check_equal, normal
from tests.support.ragged import Shape, draw
from tiny_llm.kernels.gpu_operations import flash_attention_gpu, quantized_matmul_gpu

FILE = ROOT / "book" / "records" / RECORD
LIMIT = 1.1  # of the bytes that the tiles need
LEAST_MATRIX_SHARE = 0.95
ON_MATRIX_UNITS = ("tiled_matmul", "tiled_attention")
LAYOUTS = [(4, 64), (4, 128), (8, 32)]  # bits and group sizes
LANGUAGES: tuple[Language, ...] = ("metal", "cuda")


class Case(NamedTuple):
    """A kernel's run in float16, what it is run on, of which the book shows the first, tile and limit."""

    run: Callable[[Any, Target], object]
    works: Sequence[Work]
    tile: tuple[int, int]
    limit: float = LIMIT


def products(multiply: Callable[..., mx.array], M: int, N: int, K: int, tile: tuple[int, int]) -> Case:
    def run(work: Product, target: Target) -> None:
        weights = short_weights(work.N, work.K, work.bits, work.group_size, mx.float16)
        multiply(normal(work.M, work.K, seed=1, dtype=mx.float16), weights, target)

    return Case(run, [Product(M, N, K, *layout) for layout in LAYOUTS], tile)


def attend(attend_dense: Callable[..., mx.array], work: Attention, target: Target) -> None:
    if work.block_size:
        shape = Shape((work.L,), (work.S,), work.H_q, work.H, work.D, work.block_size)
        attend_blocks(target, *draw(shape, mx.float16).arguments)
        return
    query = normal(1, work.H_q, work.L, work.D, seed=1, dtype=mx.float16)
    key, value = (normal(1, work.H, work.S, work.D, seed=seed, dtype=mx.float16) for seed in (2, 3))
    attend_dense(query, key, value, target=target)


CASES: Mapping[str, Case] = {
    "quantized_matvec": products(quantized_matmul_gpu, 8, 16, 1024, (8, 1)),
    "quantized_matmul": products(quantized_matmul_gpu, 64, 64, 256, (32, 32)),
    "tiled_matmul": products(multiply_tiles, 128, 128, 256, (64, 64)),
    "flash_attention": Case(
        partial(attend, partial(flash_attention_gpu, mask="causal")),
        [Attention(2, 1, 128, 160, 64), Attention(1, 1, 70, 96, 128), Attention(2, 1, 33, 512, 64)],
        (32, 32),
        limit=1.5,  # it brings its queries again with each block of keys
    ),
    "tiled_attention": Case(
        partial(attend, partial(attend_tiles, is_causal=True)),
        [Attention(2, 1, 128, 160, 64), Attention(1, 1, 70, 96, 128), Attention(2, 2, 70, 96, 64, 16)],
        (64, 32),
    ),
}


def count(name: str, language: Language, work: Work) -> CountedKernel:
    """What one run asks for."""
    with counting() as runs:
        CASES[name].run(work, Target(language, "emulator"))
    ((kernel, counts),) = ((run.kernel, run.counts) for run in runs)
    check_equal(kernel, name, "kernel")
    names = ("requested", "bank_conflicts", "lanes", "idle_lanes", "matrix_products", "scalar_products")
    counted = (getattr(counts, each) for each in names)
    return CountedKernel(name, language, *CASES[name].tile, work, *counted)


@pytest.mark.parametrize(
    ("name", "work"), [(name, work) for name, case in CASES.items() for work in case.works], ids=str
)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kernel_asks_for_little_more_than_its_tiles_need(language: Language, name: str, work: Work) -> None:
    counted = count(name, language, work)
    assert 1 <= counted.ratio <= CASES[name].limit, f"{counted.ratio:.3f} times the bytes that the tiles need"
    assert counted.bank_conflicts == 0
    assert name not in ON_MATRIX_UNITS or counted.matrix_share >= LEAST_MATRIX_SHARE, counted.matrix_share


def test_the_record_is_current(pytestconfig: pytest.Config) -> None:
    counted = [count(name, language, CASES[name].works[0]) for name in CASES for language in LANGUAGES]
    if pytestconfig.getoption("--record-counts"):
        write_counts(FILE, counted)
    assert read_counts(FILE) == counted, "the head of this file says how to record the counts"
