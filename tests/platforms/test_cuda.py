"""The CUDA kernels on NVIDIA's compiler: all compile, nothing spills, and the book's table is what it says.

To compile all of them takes minutes, so the record holds a digest of the source that was compiled. After a
change of a kernel, `pdm run author test-platforms --record-cuda` compiles it and writes the table.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel_runtime.gpu_kernel import GpuKernel
from scripts.book.cuda import RECORD, Kernel, Takes, read_kernels, write_kernels
from scripts.course import ROOT
from tests.platforms.kernel_sources import GPU_KERNELS
from tests.platforms.nvrtc import ARCHITECTURES, Usage, digest_of, usage_of

pytestmark = pytest.mark.sampled(3, "kernel_runtime/", "tiny_llm_ref/kernels/")
FILE = ROOT / "book" / "records" / RECORD
RECORD_IT = "run `pdm run author test-platforms --record-cuda`"
SAMPLE = [kernel for kernel in GPU_KERNELS if kernel.name in ("swiglu", "quantized_matvec")]
MAX_SHARED = 48 * 1024  # bytes that a block may have without asking for more


@pytest.fixture(scope="module")
def recorded(pytestconfig: pytest.Config) -> dict[str, Kernel]:
    """The kernels of the record, which --record-cuda rewrites."""
    kept = {each.name: each for each in read_kernels(FILE)}
    if pytestconfig.getoption("--record-cuda"):
        with ThreadPoolExecutor(2) as pool:
            new = list(pool.map(lambda kernel: kept_or_compiled(kernel, kept.get(kernel.name)), GPU_KERNELS))
        write_kernels(FILE, new)
        kept = {each.name: each for each in new}
    return kept


def kept_or_compiled(kernel: GpuKernel, kept: Kernel | None) -> Kernel:
    """What the record has of a kernel, unless its source or the compiler has changed."""
    return kept if kept and kept.digest == digest_of(kernel) else compiled(kernel)


def compiled(kernel: GpuKernel) -> Kernel:
    """What the compiler makes of a kernel, for each architecture."""
    taken = {name: takes(usage_of(kernel, name)) for name in ARCHITECTURES}
    return Kernel(kernel.name, digest_of(kernel), taken)


def takes(usages: Sequence[Usage]) -> Takes:
    """The least and the most registers of all combinations, and the most of everything else."""
    registers = [usage.registers for usage in usages]
    most = [max(getattr(usage, name) for usage in usages) for name in ("shared", "stack", "spills")]
    return Takes(min(registers), max(registers), *most)


@pytest.mark.parametrize("kernel", GPU_KERNELS, ids=lambda kernel: kernel.name)
def test_the_kernel_that_was_compiled_is_this_one_and_spills_nothing(
    kernel: GpuKernel, recorded: dict[str, Kernel]
) -> None:
    assert kernel.name in recorded, RECORD_IT
    assert recorded[kernel.name].digest == digest_of(kernel), RECORD_IT
    assert recorded[kernel.name].takes.keys() == {*ARCHITECTURES}
    for taken in recorded[kernel.name].takes.values():
        assert taken.spills == 0
        assert taken.shared <= MAX_SHARED


@pytest.mark.parametrize("kernel", SAMPLE, ids=lambda kernel: kernel.name)
def test_the_compiler_says_what_the_record_says(kernel: GpuKernel, recorded: dict[str, Kernel]) -> None:
    assert recorded[kernel.name] == compiled(kernel), RECORD_IT


def test_the_record_holds_these_kernels_alone(recorded: dict[str, Kernel]) -> None:
    assert list(recorded) == [kernel.name for kernel in GPU_KERNELS]
