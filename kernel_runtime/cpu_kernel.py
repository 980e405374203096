"""CPU kernels: C++ functions, compiled at first use, that are called as MLX operations.

What `mx.fast.metal_kernel` is for Metal, `CpuKernel` is for C++.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, cast

import mlx.core as mx

from kernel_runtime.native import HIDE_FUNCTIONS, BuildError, architecture_flags, compile_library

FOLDER = Path(__file__).parent
INCLUDED = re.compile(r'^#include "(\w+\.cpp)"', re.M)
BACKENDS = ("mlx-metal", "mlx-cuda-13", "mlx-cuda-12", "mlx-cpu")
VECTORS = '#include "simd.h"'
EXACT_ORDER = ("-fno-associative-math", "-fsigned-zeros", "-ffp-contract=off")
"""Sums written in vectors keep their order and their roundings, so that a row has the same bits wherever it
is computed; in plain loops the compiler chooses. Left to itself, g++ 13 joins a product and a sum into one
rounding for some numbers of rows and not for others."""
MOST_THREADS = 1024
HOLE = re.compile(r'NOT_WRITTEN_YET\(\s*"([^"]*)"\s*\)')


class Extension(Protocol):
    """The module made from extension.cpp."""

    def call(
        self,
        kernel: int,
        inputs: Sequence[mx.array],
        strided: int,
        is_in_place: bool,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        numbers: Sequence[float],
    ) -> list[mx.array]: ...

    def set_num_threads(self, count: int) -> None: ...

    def note_names(self, address: int, num_bytes: int) -> None: ...

    def run_tasks_address(self) -> int: ...


class CpuKernel:
    """A function of a C++ file, as an operation on arrays.

    Args:
        file: path of the source.
        function: its name, declared as KERNEL of kernel.h; that of the file unless given.
        strided: numbers of the inputs that the function reads by their strides; the others it is given
            contiguous.
        is_in_place: whether the first output begins as the first input, of the same shape and type; it takes
            that one's memory if nobody else refers to it, and else a copy.
    """

    def __init__(
        self,
        file: Path,
        function: str | None = None,
        strided: Collection[int] = (),
        is_in_place: bool = False,
    ) -> None:
        self.file = file
        self.function = function or file.stem
        self._strided = sum(1 << number for number in strided)
        self._is_in_place = is_in_place
        self._address = 0

    def __call__(
        self,
        inputs: Sequence[mx.array],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        numbers: Sequence[float] = (),
    ) -> list[mx.array]:
        """Outputs of the given shapes and types, computed when they are evaluated.

        Raises:
            BuildError: the file cannot be compiled.
            NotImplementedError: a function of the file is not written yet.
            ValueError: no kernel could take this: more than eight dimensions, an empty input for an output
                that isn't, other numbers of shapes than of types, or an output in place that differs from
                its input. Whether the arrays fit this kernel is for the caller to check (`shaped`).
        """
        if not self._address:
            self._address = function_address(self.file, self.function)
        call = load_extension().call
        return call(self._address, inputs, self._strided, self._is_in_place, shapes, dtypes, numbers)


def function_address(file: Path, function: str) -> int:
    """Compile a file's functions and find one; errors as for `CpuKernel`."""
    library = load_kernels(file)
    try:
        address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
    except AttributeError:
        raise BuildError(
            f"{file.name} has no function {function}: declare it as KERNEL {function}(...)"
        ) from None
    assert address is not None
    return address


@cache
def load_kernels(file: Path) -> ctypes.CDLL:
    """The functions of one C++ file, ready to run."""
    included = "".join(path.read_text(encoding="utf-8") for path in included_sources(file))
    if hole := HOLE.search(file.read_text(encoding="utf-8") + included):
        raise NotImplementedError(hole[1])
    extension = load_extension()
    library = ctypes.CDLL(str(compile_kernels(file)))
    ctypes.c_void_p.in_dll(library, "tiny_llm_run_tasks").value = extension.run_tasks_address()
    return library


def compile_kernels(file: Path) -> Path:
    """The shared library of one C++ file's functions; BuildError if it cannot be compiled here."""
    included = "".join(path.read_text(encoding="utf-8") for path in included_sources(file))
    options = [*kernel_options(file), *architecture_flags()]
    return compile_library(file.stem, [file], options, key=headers() + included, headers=FOLDER)


def kernel_options(file: Path) -> list[str]:
    """How a file is compiled for any processor."""
    texts = [path.read_text(encoding="utf-8") for path in (file, *included_sources(file))]
    is_exact = any(VECTORS in text for text in texts)
    options = ["-std=c++17", "-O3", "-ffast-math", "-fno-finite-math-only", HIDE_FUNCTIONS]
    return [*options, *(EXACT_ORDER if is_exact else [])]


@cache
def load_extension() -> Extension:
    """The bridge between MLX and C functions; BuildError if it cannot be compiled here."""
    name = "tiny_llm_extension"
    if name not in sys.modules:
        loader = importlib.machinery.ExtensionFileLoader(name, str(compile_extension()))
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[name] = module
    extension = cast(Extension, sys.modules[name])
    extension.set_num_threads(num_threads())
    return extension


def compile_extension() -> Path:
    """Compile extension.cpp against the headers of the MLX that is installed."""
    # Their types are shared with MLX's own module, so nanobind must be the release that MLX was made with.
    nanobind = package_folder("nanobind")
    mlx = Path(mx.__file__).parent
    options = [
        "-std=c++20",
        "-O2",
        HIDE_FUNCTIONS,
        "-DNB_DOMAIN=mlx",
        f"-I{nanobind / 'include'}",
        f"-I{nanobind / 'ext' / 'robin_map' / 'include'}",
        f"-I{mlx / 'include'}",
        f"-I{sysconfig.get_path('include')}",
    ]
    linker_options = [f"-L{mlx / 'lib'}", "-lmlx", "-Xlinker", "-rpath", "-Xlinker", str(mlx / "lib")]
    if sys.platform == "darwin":  # Python's own symbols are those of the process that loads the library
        linker_options += ["-undefined", "dynamic_lookup"]
    sources = [FOLDER / "extension.cpp", nanobind / "src" / "nb_combined.cpp"]
    key = f"{headers()} mlx {version('mlx')} {mlx_backend()} nanobind {version('nanobind')} {sys.version}"
    return compile_library(
        "tiny_llm_extension", sources, options, key, suffix=".so", linker_options=linker_options
    )


def mlx_backend() -> str:
    """The package that brings MLX's backend, and its version."""
    for name in BACKENDS:
        with suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return "no backend"


@cache
def headers() -> str:
    """The text of the headers: what includes them depends on it."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.h")))


def included_sources(file: Path) -> list[Path]:
    """The C++ sources that a file takes in, at any depth: their functions are its own as well."""
    sources = [file.parent / name for name in INCLUDED.findall(file.read_text(encoding="utf-8"))]
    return [each for source in sources for each in (source, *included_sources(source))]


def package_folder(name: str) -> Path:
    """Where an installed package lies; BuildError if it is not there."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"the package {name} is not installed: run `pdm run setup`")
    return Path(next(iter(spec.submodule_search_locations)))


def num_threads() -> int:
    """Processors that this process may use, or as many threads as TINY_LLM_THREADS says.

    Raises:
        BuildError: TINY_LLM_THREADS is no number from 1 to MOST_THREADS.
    """
    if chosen := os.environ.get("TINY_LLM_THREADS"):
        if not chosen.isdecimal() or not 1 <= int(chosen) <= MOST_THREADS:
            raise BuildError(
                f"TINY_LLM_THREADS is {chosen!r}: set it to a number from 1 to {MOST_THREADS}, or unset it"
            )
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
