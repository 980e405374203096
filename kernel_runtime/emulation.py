"""GPU kernels on the CPU: a Metal or CUDA source, compiled as C++ under the thread model of `emulator/`."""

import ctypes
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.counting import CountsInMemory, with_counted_literals
from kernel_runtime.gpu_source import whole_source
from kernel_runtime.launch import Launch, Template
from kernel_runtime.native import HIDE_FUNCTIONS, compile_library

FOLDER = Path(__file__).parent
EMULATOR = FOLDER / "emulator"
WATCHED = "-fsanitize=thread"  # calls the functions of races.h at each access; its library is left out
STAND_INS = {  # for the languages' own headers
    "metal_stdlib": "metal.h",
    "mma.h": "mma.h",
    "cuda_pipeline.h": "pipeline.h",
}
OPTIONS = [
    "-std=c++17",
    "-O2",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    HIDE_FUNCTIONS,
    WATCHED,
]
CPP_TYPES = {mx.float32: "float", mx.float16: "emulator::Half", mx.bfloat16: "emulator::BFloat16"}


class EmulatorError(RuntimeError):
    """A kernel did what a GPU may not forgive; the message says what, and which thread did it."""


class Buffer(ctypes.Structure):
    """Buffer of emulator.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("entry_bytes", ctypes.c_int),
        ("is_output", ctypes.c_int),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


class Arguments(ctypes.Structure):
    """Launch of emulator.h."""

    _fields_ = [
        ("buffers", ctypes.POINTER(Buffer)),
        ("num_buffers", ctypes.c_int),
        ("integers", ctypes.POINTER(ctypes.c_int)),
        ("reals", ctypes.POINTER(ctypes.c_float)),
        ("num_groups", ctypes.c_uint * 3),
        ("num_threads", ctypes.c_int),
        ("order", ctypes.c_int),
        ("counts", ctypes.POINTER(CountsInMemory)),
    ]


def generate_source(
    file: Path,
    call: str,
    templates: Sequence[Template],
    shared: Mapping[str, tuple[str, str]],
    is_counted: bool = False,
) -> str:
    """C++ that runs a kernel under the emulator: a function for each set of template arguments.

    Args:
        file: the Metal or CUDA source, which says by its suffix what it is.
        call: the kernel's call, in which buffer(i), integers[i] and reals[i] stand for what Python passes.
        templates: the sets.
        shared: type and length of each array that the threads of a group share.
        is_counted: whether the run notes what the kernel asks of a GPU.
    """
    header = "metal.h" if file.suffix == ".metal" else "cuda.h"
    text = whole_source(file)
    lines = [f'#include "{header}"']
    for name, ours in STAND_INS.items():
        if f"#include <{name}>" in text:
            lines.append(f'#include "{ours}"')
            text = text.replace(f"#include <{name}>", "")
    if is_counted:
        lines = ["#define EMULATOR_COUNTS", *lines, "#define float emulator::Counted"]
        text = with_counted_literals(text)
    lines += [text, '#line 1 "the call"']
    for number, template in enumerate(templates):
        lines.append(f"static void run_{number}() {{")
        lines += [f"  {declare(name, value)}" for name, value in template.items()]
        lines += [
            f'  {of}* {name} = emulator::shared<{of}>("{name}", {length});'
            for name, (of, length) in shared.items()
        ]
        lines += [
            "  const int* integers = emulator::launch.integers;",
            "  const auto* reals = emulator::launch.reals;",
            "  using emulator::buffer, emulator::strides;",
            f"  {call}",
            "}",
        ]
    functions = ", ".join(f"run_{number}" for number in range(len(templates)))
    lines += [
        'extern "C" __attribute__((visibility("default")))',
        "const char* tiny_llm_emulate(int number, const emulator::Launch* launch) {",
        f"  static void (*const functions[])() = {{{functions}}};",
        "  return emulator::run(functions[number], *launch);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def declare(name: str, value: int | mx.Dtype) -> str:
    """A template argument as C++ declares it."""
    if isinstance(value, mx.Dtype):
        return f"using {name} = {CPP_TYPES[value]};"
    return f"constexpr int {name} = {value};"


@cache
def load_emulated(name: str, source: str) -> ctypes.CDLL:
    """The library of a generated source; BuildError where it cannot be compiled."""
    library = ctypes.CDLL(str(compile_emulated(name, source)))
    library.tiny_llm_emulate.restype = ctypes.c_char_p
    return library


def compile_emulated(name: str, source: str) -> Path:
    """Compile a generated source, unless the cache has its library."""
    headers = [header.read_text(encoding="utf-8") for header in sorted(EMULATOR.iterdir())]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EMULATOR, folder, dirs_exist_ok=True)
        generated = Path(folder) / "kernel.cpp"
        generated.write_text(source, encoding="utf-8")
        return compile_library(name, [generated], OPTIONS, key="".join(headers))


def emulate(
    library: ctypes.CDLL,
    number: int,
    names: Sequence[str],
    launch: Launch,
    order: int,
    strided: Collection[str] = (),
    counts: CountsInMemory | None = None,
) -> mx.array:
    """Run a kernel, at once, and return its output.

    Args:
        library: from `load_emulated`.
        number: which of its sets of template arguments.
        names: of the inputs and the output.
        launch: what to run.
        order: of the threads, as in `Target`.
        strided: names of the inputs that are read where they lie.
        counts: what a counted kernel asks for is noted here.

    Raises:
        EmulatorError: the kernel broke a rule.
    """
    output = np.zeros(launch.shape, np.float32 if launch.dtype == mx.float32 else np.uint16)
    inputs = [in_memory(x, name in strided) for name, x in zip(names, launch.inputs, strict=False)]
    buffers = [
        Buffer(name.encode(), x.ctypes.data, num_bytes(x), x.itemsize, x is output, strides_of(x))
        for name, x in zip(names, [*inputs, output], strict=True)
    ]
    arguments = Arguments(
        (Buffer * len(buffers))(*buffers),
        len(buffers),
        (ctypes.c_int * len(launch.integers))(*launch.integers),
        (ctypes.c_float * len(launch.reals))(*launch.reals),
        (ctypes.c_uint * 3)(*launch.num_groups),
        launch.num_threads,
        order,
        None if counts is None else ctypes.pointer(counts),
    )
    error = library.tiny_llm_emulate(number, ctypes.byref(arguments))
    if error is not None:
        raise EmulatorError(error.decode())
    result = mx.array(output)
    return result if launch.dtype == mx.float32 else result.view(launch.dtype)


def in_memory(x: mx.array, is_strided: bool) -> npt.NDArray[np.generic]:
    """The array where it lies, or row by row; of half precision the bits, since numpy has no bfloat16."""
    array: npt.NDArray[np.generic] = np.array(x.view(mx.uint16) if x.itemsize == 2 else x, copy=False)
    return array if is_strided and min(array.strides) >= 0 else np.ascontiguousarray(array)


def num_bytes(x: npt.NDArray[np.generic]) -> int:
    """From the first entry of an array to its last, with whatever lies between."""
    between = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    return x.itemsize + int(between)


def strides_of(x: npt.NDArray[np.generic]) -> "ctypes.Array[ctypes.c_int64]":
    """Its strides in entries, as MLX counts them."""
    return (ctypes.c_int64 * x.ndim)(*(stride // x.itemsize for stride in x.strides))
