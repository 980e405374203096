"""CPU kernels whose arrays end where memory does: one entry too far is a fault, not a lucky number."""

import ctypes
import faulthandler
import mmap
import os
import signal
import warnings
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.cpu_kernel import CpuKernel, function_address
from tests.support.causes import LEFT_OVER
from tests.support.check import fail
from tests.support.cpu_kernels import threads

FAULTS = (signal.SIGSEGV, signal.SIGBUS)


class KernelArray(ctypes.Structure):
    """`Array` of kernel.h."""

    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("num_dimensions", ctypes.c_int64),
    )


class FencedKernel:
    """Called as the kernel is; computes at once, in a process of its own, and fails if that faults."""

    def __init__(self, kernel: CpuKernel) -> None:
        self.kernel = kernel

    def __call__(
        self,
        inputs: Sequence[mx.array],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        numbers: Sequence[float] = (),
    ) -> list[mx.array]:
        __tracebackhide__ = True
        given = [at_the_end_of_memory(np.array(x)) for x in inputs]
        outputs = [
            at_the_end_of_memory(np.full(shape, LEFT_OVER)) for shape, _ in zip(shapes, dtypes, strict=True)
        ]
        address = function_address(self.kernel.file, self.kernel.function)
        with threads(1):  # those of a pool are not there in another process
            exit_code = run_in_child(address, given, outputs, numbers)
        if -exit_code in FAULTS:
            fail(
                f"{self.kernel.file.name} reads or writes behind the end of an array: inputs of "
                f"{[x.shape for x in given]}, outputs of {[x.shape for x in outputs]}",
                "Is the last block, group or vector shorter than the others? Stop where the array ends.",
            )
        if exit_code:
            fail(f"{self.kernel.file.name} ended its process with code {exit_code}")
        return [mx.array(output) for output in outputs]


def at_the_end_of_memory(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A contiguous copy, shared with child processes, behind which a page can neither be read nor written."""
    num_pages = -(-x.nbytes // mmap.PAGESIZE)
    mapping = mmap.mmap(-1, (num_pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    end = num_pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    no_access = 0
    if libc.mprotect(ctypes.c_void_p(start + end), ctypes.c_size_t(mmap.PAGESIZE), no_access):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(mapping, x.dtype, x.size, end - x.nbytes).reshape(x.shape)
    copy[...] = x
    return copy


def run_in_child(
    address: int,
    inputs: Sequence[npt.NDArray[np.generic]],
    outputs: Sequence[npt.NDArray[np.generic]],
    numbers: Sequence[float],
) -> int:
    """Call a kernel in another process: its exit code, or minus the signal that ended it."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
    arguments = [(KernelArray * len(arrays))(*map(kernel_array, arrays)) for arrays in (inputs, outputs)]
    values = (ctypes.c_double * len(numbers))(*numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads; the child uses none
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        for fault in FAULTS:
            signal.signal(fault, signal.SIG_DFL)
        function(*arguments, values)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kernel_array(x: npt.NDArray[np.generic]) -> KernelArray:
    """The array as a kernel sees it, its strides in elements."""
    numbers = ctypes.c_int64 * x.ndim
    return KernelArray(
        x.ctypes.data, numbers(*x.shape), numbers(*(s // x.itemsize for s in x.strides)), x.ndim
    )
