"""The CUDA kernels on NVIDIA's compiler: all compile, nothing spills, and the book's table is what it says.

After a change of a kernel, `pdm run author test-platforms --record-cuda` writes the table.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel_runtime.gpu_kernel import GpuKernel
from scripts.book.cuda import RECORD, Kernel, Takes, read_kernels, write_kernels
from scripts.course import ROOT
from tests.platforms.kernel_sources import GPU_KERNELS
from tests.platforms.nvrtc import ARCHITECTURES, Usage, usage_of

FILE = ROOT / "book" / "records" / RECORD
MAX_SHARED = 48 * 1024  # bytes that a block may have without asking for more


@pytest.fixture(scope="module")
def usages(pytestconfig: pytest.Config) -> dict[tuple[str, str], list[Usage]]:
    """Usage by kernel and architecture; with --record-cuda it is written to the record."""
    pairs = [(kernel, architecture) for kernel in GPU_KERNELS for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda pair: usage_of(*pair), pairs))
    found = {(kernel.name, name): usage for (kernel, name), usage in zip(pairs, results, strict=True)}
    if pytestconfig.getoption("--record-cuda"):
        kernels = []
        for kernel in GPU_KERNELS:
            taken = {name: takes(found[kernel.name, name]) for name in ARCHITECTURES}
            kernels.append(Kernel(kernel.name, taken))
        write_kernels(FILE, kernels)
    return found


def takes(usages: Sequence[Usage]) -> Takes:
    """The least and the most registers of all combinations, and the most of everything else."""
    registers = [usage.registers for usage in usages]
    most = [max(getattr(usage, name) for usage in usages) for name in ("shared", "stack", "spills")]
    return Takes(min(registers), max(registers), *most)


each_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS, ids=lambda kernel: kernel.name)


@each_kernel
def test_kernel_compiles_and_spills_nothing(
    kernel: GpuKernel, usages: dict[tuple[str, str], list[Usage]]
) -> None:
    for (name, _), found in usages.items():
        if name == kernel.name:
            assert [usage.spills for usage in found] == [0] * len(found)
            assert max(usage.shared for usage in found) <= MAX_SHARED


@each_kernel
def test_the_record_is_current(kernel: GpuKernel, usages: dict[tuple[str, str], list[Usage]]) -> None:
    recorded = {each.name: each for each in read_kernels(FILE)}
    assert kernel.name in recorded, "run `pdm run author test-platforms --record-cuda`"
    now = {name: takes(usages[kernel.name, name]) for name in ARCHITECTURES}
    assert recorded[kernel.name].takes == now, "run `pdm run author test-platforms --record-cuda`"


def test_the_record_holds_these_kernels_alone() -> None:
    assert [each.name for each in read_kernels(FILE)] == [kernel.name for kernel in GPU_KERNELS]
