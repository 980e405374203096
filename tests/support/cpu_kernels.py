"""What tests of CPU kernels share: outputs that nobody wrote show, and every instruction set is tried."""

import inspect
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime import cpu_kernel
from kernel_runtime.cpu_kernel import CpuKernel
from tests.support.causes import LEFT_OVER
from tests.support.check import fail

IS_X86 = platform.machine() in ("x86_64", "AMD64")
TARGETS = ("x86-64", "x86-64-v3")
"""Processors to compile for besides this one: vectors of 4 floats, and of 8."""

on_every_target = pytest.mark.parametrize("target", TARGETS)


def poison(*shape: int) -> None:
    """Fill memory with nan and free it, so that it shows where an output of this shape is not written."""
    mx.eval([mx.array(np.full(shape, LEFT_OVER)) for _ in range(8)])


def use_device(device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package think that this is the default device."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))


def compiled_for(target: str, kernel: CpuKernel, monkeypatch: pytest.MonkeyPatch) -> CpuKernel:
    """The same kernel with the instructions of another processor; skips where this one lacks them."""
    if not IS_X86:
        pytest.skip("needs an x86 processor: others have one width of vectors")
    cpu_info = Path("/proc/cpuinfo")
    if target == "x86-64-v3" and (not cpu_info.exists() or " avx2 " not in cpu_info.read_text()):
        pytest.skip("needs a processor with AVX2")
    monkeypatch.setenv("TINY_LLM_MARCH", target)
    monkeypatch.setattr(cpu_kernel, "load_kernels", inspect.unwrap(cpu_kernel.load_kernels))
    strided = [number for number in range(8) if kernel._strided >> number & 1]
    return CpuKernel(kernel.file, kernel.function, strided)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for the kernels called inside, which must be evaluated there too."""
    extension = cpu_kernel.load_extension()
    mx.synchronize(mx.cpu)
    extension.set_num_threads(count)
    try:
        yield
    finally:
        mx.synchronize(mx.cpu)
        extension.set_num_threads(cpu_kernel.num_threads())


def check_threads(compute: Callable[[], mx.array], what: str, num_calls: int = 12) -> None:
    """Fail unless many threads give the same to the last bit as one, each time.

    Args:
        compute: makes the result anew; large enough for all threads to be at work at once.
        what: the result in the words of the task.
        num_calls: of many threads; what they overwrite for each other differs from call to call.
    """
    __tracebackhide__ = True
    with threads(1):
        expected = compute()
        mx.eval(expected)
    for i in range(num_calls):
        with threads(4):
            result = compute()
            mx.eval(result)
        num_wrong = int((result != expected).sum().item())
        if num_wrong:
            fail(
                f"{what}: {num_wrong} of {result.size} entries with 4 threads are not those with 1 thread, "
                f"in call {i + 1} of {num_calls}",
                "What one thread writes, another one reads: make buffers and sums inside of the function "
                "that parallel_for calls, neither before it nor as static.",
            )


def spread(x: mx.array, axis: int = -1) -> mx.array:
    """The same numbers as a slice of a larger array, every other entry of an axis: not contiguous."""
    axis %= x.ndim
    doubled = mx.repeat(x, 2, axis=axis)
    mx.eval(doubled)
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = slice(None, None, 2)
    return doubled[tuple(index)]


def rows_of(starts: Sequence[int], L: int) -> list[list[int]]:
    """The positions of L neighbours in each row."""
    return [[start + i for i in range(L)] for start in starts]
