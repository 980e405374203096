"""The CUDA kernels, compiled as MLX compiles them: by NVRTC, with the text that MLX puts around."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx

from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.gpu_source import whole_source
from kernel_runtime.launch import Template
from tests.platforms.kernel_sources import declarations, parameters, templates

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
WITHOUT_BFLOAT16 = "sm_75"  # whose matrix units do not multiply it
HEADER = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/array>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cooperative_groups.h>
#define MAX_NDIM 10
#define WARP_SIZE 32
#define inf cuda::std::numeric_limits<float>::infinity()
"""
ENTRY = re.compile(
    r"Compiling entry function 'kernel_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.S,
)
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What a thread of a kernel takes, and of shared memory a block; all but registers in bytes.

    Attributes:
        registers: of a thread.
        shared: of a block.
        stack: of a thread, in device memory: arrays whose places are known only at run time.
        spills: written and read again for want of registers.
    """

    registers: int
    shared: int
    stack: int
    spills: int


def templates_on(kernel: GpuKernel, architecture: str) -> list[Template]:
    """Every combination of a kernel's template arguments that an architecture runs."""
    uses_matrix_units = mx.float32 not in kernel.templates["T"]
    is_left_out = uses_matrix_units and architecture == WITHOUT_BFLOAT16
    return [each for each in templates(kernel) if not (is_left_out and each["T"] == mx.bfloat16)]


def source_of(kernel: GpuKernel, choices: Sequence[Template]) -> str:
    """One source with the kernel for each choice of template arguments."""
    lines = [HEADER, whole_source(kernel.file("cuda"))]
    lines.append("namespace mlx::core::cu {\n\nnamespace cg = cooperative_groups;\n")
    lines.append("using Strides = cuda::std::array<int64_t, MAX_NDIM>;\n")
    for number, template in enumerate(choices):
        lines.append(f'extern "C" __global__ void kernel_{number}({parameters(kernel, "cuda", template)}) {{')
        lines.append(f"{declarations('cuda', template)}\n{kernel.body('cuda')}\n}}\n")
    return "\n".join([*lines, "}"])


def digest_of(kernel: GpuKernel) -> str:
    """Of everything that decides what the compiler says."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    source = source_of(kernel, list(templates(kernel)))
    return hashlib.sha256(f"{version}\n{source}".encode()).hexdigest()[:16]


def usage_of(kernel: GpuKernel, architecture: str) -> list[Usage]:
    """What a kernel takes, for each combination of its template arguments."""
    choices = templates_on(kernel, architecture)
    log = compile_source(source_of(kernel, choices), architecture)
    usages = {}
    for number, stack, stored, loaded, registers, rest in ENTRY.findall(log):
        shared = SHARED.search(rest)
        usages[int(number)] = Usage(
            int(registers), int(shared[1]) if shared else 0, int(stack), int(stored) + int(loaded)
        )
    return [usages[number] for number in range(len(choices))]


def compile_source(source: str, architecture: str) -> str:
    """What the compiler says of a source that it accepts; a failure with its errors otherwise."""
    nvrtc, program, size = load_nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    includes = [toolkit() / "include", toolkit() / "include" / "cccl"]
    options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    options += [f"--include-path={folder}" for folder in includes]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    encoded = [option.encode() for option in options]
    result = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert result == 0, log.value.decode()
    return log.value.decode()


@cache
def load_nvrtc() -> ctypes.CDLL:
    """The compiler."""
    return ctypes.CDLL(str(toolkit() / "lib" / "libnvrtc.so.13"))


def toolkit() -> Path:
    """Where compiler and headers lie; a failure in one sentence where they are not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) / "cu13" for folder in (spec.submodule_search_locations or [] if spec else [])]
    found = [folder for folder in folders if (folder / "lib" / "libnvrtc.so.13").exists()]
    assert found, "nvidia-cuda-nvrtc is not installed: on Linux, run `pdm run setup --group platforms`"
    return found[0]
