"""Every native library of the project, built by its own build code as on an Apple-silicon Mac.

Only the compiler is another: Zig's clang and linker, for macOS 14. MLX is its wheel for macOS.
"""

import itertools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from kernel_runtime import cpu_kernel, native
from kernel_runtime.emulation import compile_emulated
from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import Language
from scripts import setup
from tests.platforms.kernel_sources import CPU_SOURCES, GPU_KERNELS
from tests.platforms.mach_o import read_library, write_stub
from tests.platforms.zig import zig

MACOS = "14.0"
LANGUAGES: tuple[Language, ...] = ("metal", "cuda")
LIBCXX = "/usr/lib/libc++.1.dylib"
# Nothing here lists what macOS's libc++ offers. What MLX asks of it is there; so are these names.
MORE_OF_LIBCXX = {
    "__ZNSt3__16thread6detachEv",
    "__ZdlPvm",  # delete with a size, and with an alignment too
    "__ZdlPvmSt11align_val_t",
    "__ZNSt3__113__hash_memoryEPKvm",  # Apple's headers call it only where the system has it
}
COMPILER = """#!/bin/sh
# Zig knows this processor only under its name, and links without the libraries that it would compile first.
linking=yes
for option; do
    shift
    case "$option" in
        -mcpu=native) option=-mcpu=apple_m1 ;;
        -c) linking= ;;
    esac
    set -- "$@" "$option"
done
[ "$1" = --version ] && exec {zig} c++ --version  # with a target it would leave a file a.o behind
[ $linking ] || exec {zig} c++ -target aarch64-macos.{macos} "$@"
exec {zig} cc -target aarch64-macos.{macos} -nostdlib "$@" -lSystem {libcxx}
"""


def build_jobs() -> dict[str, Callable[[], Path]]:
    """What native.py compiles on a Mac, by name; of emulated kernels one set of template arguments."""
    jobs: dict[str, Callable[[], Path]] = {"extension": cpu_kernel.compile_extension}
    jobs |= {source.name: partial(cpu_kernel.compile_kernels, source) for source in CPU_SOURCES}
    for kernel, language in itertools.product(GPU_KERNELS, LANGUAGES):
        jobs[kernel.file(language).name] = partial(build_emulated, kernel, language)
    return jobs


def build_emulated(kernel: GpuKernel, language: Language) -> Path:
    """Compile a kernel for the emulator, with the first value of each template argument."""
    template = {name: values[0] for name, values in kernel.templates.items()}
    return compile_emulated(f"{kernel.name}-{language}", kernel.emulated_source(language, [template]))


def build_all(folder: Path) -> dict[str, Path | native.BuildError]:
    """The libraries, or why there is none, by name."""

    def build(job: Callable[[], Path]) -> Path | native.BuildError:
        try:
            return job()
        except native.BuildError as error:
            return error

    with as_on_a_mac(folder), ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = build_jobs()
        return dict(zip(jobs, pool.map(build, jobs.values()), strict=True))


@contextmanager
def as_on_a_mac(folder: Path) -> Iterator[None]:
    """Let the build code believe that this is a Mac whose compiler is Zig's; its cache is in `folder`."""
    compiler, libcxx = folder / "c++", folder / "libc++.tbd"
    write_stub(libcxx, LIBCXX, names_of_libcxx())
    compiler.write_text(COMPILER.format(zig=zig(), macos=MACOS, libcxx=libcxx))
    compiler.chmod(0o755)
    mlx = SimpleNamespace(__file__=str(mac_package() / "core.so"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        patch.setenv("TINY_LLM_CACHE", str(folder / "cache"))
        patch.delenv("TINY_LLM_MARCH", raising=False)
        patch.setattr(native.platform, "machine", lambda: "arm64")
        patch.setattr(cpu_kernel, "mx", mlx)
        patch.setattr(sys, "platform", "darwin")
        forget_compiler()
        yield
    forget_compiler()


def forget_compiler() -> None:
    """Let native.py look for the compiler again."""
    native.find_compiler.cache_clear()
    native.machine_key.cache_clear()


def names_of_libcxx() -> set[str]:
    """What macOS's C++ library is known to offer."""
    libraries = map(read_library, mlx_libraries())
    asked = {name for library in libraries for name, place in library.undefined.items() if place == LIBCXX}
    return asked | MORE_OF_LIBCXX


def mlx_libraries() -> list[Path]:
    """The two libraries of MLX's wheel."""
    return [mac_package() / "lib" / "libmlx.dylib", *mac_package().glob("core.*.so")]


def mac_package() -> Path:
    """MLX's package for macOS, downloaded as pdm.lock names it unless that was done before."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = native.cache_dir().parent / f"mlx-{version('mlx')}-macos-{MACOS}-python-{python}"
    if not kept.exists():
        with TemporaryDirectory(dir=kept.parent) as folder:
            download_wheels(Path(folder), python)
            unpacked = Path(folder) / "unpacked"
            for wheel in Path(folder).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(unpacked)
            unpacked.rename(kept)
    return kept / "mlx"


def download_wheels(folder: Path, python: str) -> None:
    """MLX's wheels for macOS, whose hashes pip compares with those of pdm.lock."""
    packages = setup.load_toml(setup.LOCK_FILE.read_text(encoding="utf-8"))["package"]
    lines = [
        setup.requirement_line({key: value for key, value in package.items() if key != "marker"})
        for package in packages
        if package["name"] in ("mlx", "mlx-metal")
    ]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(lines) + "\n")
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
    options += ["--platform", f"macosx_{MACOS.replace('.', '_')}_arm64", "--python-version", python]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
    result = subprocess.run(
        [*command, "--dest", str(folder), "--requirement", str(requirements)], capture_output=True, text=True
    )
    assert result.returncode == 0, f"MLX's wheels for macOS cannot be downloaded: {result.stderr}"
