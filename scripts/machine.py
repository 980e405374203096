"""What MLX and the kernels need of a machine: Python, system, compiler and driver, and how to mend each.

`scripts/setup.py` looks here before pip runs, and `pdm run doctor` shows every finding. The module uses the
standard library alone, and Python 3.8 can read it, so an old Python gets a sentence instead of a traceback.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Literal, NamedTuple, Tuple  # noqa: UP035, Python 3.8 has no tuple[...]

Level = Literal["ok", "note", "problem"]
Version = Tuple[int, ...]  # noqa: UP006

SUPPORTED_PYTHONS = ((3, 10), (3, 13))
PROCESSORS = {"Darwin": ("arm64",), "Linux": ("x86_64", "aarch64")}
OLDEST_MACOS = (14, 0)
OLDEST_GLIBC = (2, 35)
OLDEST_CUDA_DRIVER = 580  # for CUDA 13.x, says NVIDIA's guide "CUDA Compatibility"
COMPILERS = ("c++", "g++", "clang++")
MISSING = "cannot be found, and the kernels of week 2 need it"
LINUX_TOOLS = "`sudo apt install g++ python3-dev` (Fedora: `sudo dnf install gcc-c++ python3-devel`)"
START_AGAIN = "run `rm -rf .venv .pdm-python` and the command again"


class Finding(NamedTuple):
    """What a check found; `fix` is empty where all is well."""

    level: Level
    text: str
    fix: str = ""


def check_machine(backend: str) -> list[Finding]:
    """One finding for each thing that the packages or the kernels need, for MLX's "cpu" or "cuda" backend."""
    findings = [check_system(), check_environment(), check_compiler()]
    return [*findings, check_cuda_driver()] if backend == "cuda" else findings


def check_python(version: Version) -> Finding:
    """Whether MLX has wheels for this version of Python."""
    name, oldest, newest = (f"{each[0]}.{each[1]}" for each in (version, *SUPPORTED_PYTHONS))
    if SUPPORTED_PYTHONS[0] <= version[:2] <= SUPPORTED_PYTHONS[1]:
        return Finding("ok", f"Python {name}")
    fix = f"run `pdm python install {newest}`, then `pdm use -f {newest}`, and the command again"
    return Finding("problem", f"Python {name} is not supported, {oldest} to {newest} are", fix)


def check_system() -> Finding:
    """Whether MLX has wheels for this processor and system."""
    system, processor = platform.system(), platform.machine()
    if system not in PROCESSORS:
        return Finding("problem", f"the course does not run on {system}", "on Windows, clone it in WSL 2")
    if system == "Darwin" and processor == "x86_64":
        return check_intel()
    if processor not in PROCESSORS[system]:
        choices = " or ".join(PROCESSORS[system])
        return Finding("problem", f"MLX has no wheels for {processor}", f"use a machine with {choices}")
    return check_macos(platform.mac_ver()[0]) if system == "Darwin" else check_glibc(*platform.libc_ver())


def check_intel() -> Finding:
    """Why Python is made for Intel on a Mac: Rosetta translates it, or the Mac has no Apple silicon."""
    if answer_of("sysctl", "-n", "hw.optional.arm64") != "1":
        fix = "open the course in its dev container, or on Linux"
        return Finding("problem", "this Mac has an Intel processor, and MLX needs Apple silicon", fix)
    return Finding(
        "problem",
        "this Python is made for Intel and runs under Rosetta, and MLX needs one made for arm64",
        "install Python from python.org, or with the Homebrew in /opt/homebrew; then, in a terminal where "
        f"`arch` prints arm64, {START_AGAIN}",
    )


def check_macos(version: str) -> Finding:
    """Whether MLX's wheels run on this macOS."""
    if numbers_of(version) >= OLDEST_MACOS:
        return Finding("ok", f"macOS {version}, arm64")
    text = f"macOS {version} is too old, MLX needs {OLDEST_MACOS[0]} or newer"
    return Finding("problem", text, "update it in System Settings, under General, Software Update")


def check_glibc(name: str, version: str) -> Finding:
    """Whether MLX's wheels run with this C library."""
    oldest = ".".join(map(str, OLDEST_GLIBC))
    fix = "use Debian 12, Ubuntu 22.04, Fedora 36, RHEL 10 or anything newer, or open the dev container"
    if name != "glibc":
        return Finding(
            "problem", f"this Linux does not use glibc, and MLX needs glibc {oldest} or newer", fix
        )
    if numbers_of(version) < OLDEST_GLIBC:
        return Finding("problem", f"glibc {version} is too old, MLX needs {oldest} or newer", fix)
    return Finding("ok", f"Linux, {platform.machine()}, glibc {version}")


def check_environment() -> Finding:
    """Whether packages would go into an environment that conda manages."""
    if not is_conda(sys.prefix):
        origin = ", made from conda's Python" if is_conda(sys.base_prefix) else ""
        return Finding("ok", f"environment {Path(sys.prefix).name}{origin}")
    name = os.environ.get("CONDA_DEFAULT_ENV") or sys.prefix
    return Finding(
        "problem",
        f"the conda environment {name} is active, and the course would install its packages there",
        "run `conda deactivate` and the command again, so that pdm makes an environment of its own",
    )


def is_conda(prefix: str) -> bool:
    """Whether conda manages the environment in this folder."""
    return (Path(prefix) / "conda-meta").is_dir()


def check_compiler() -> Finding:
    """Whether there are a C++ compiler and Python's headers, which kernels need from day 2.3 on."""
    is_mac = platform.system() == "Darwin"
    compiler = find_compiler()
    if not compiler and is_mac:
        return Finding(
            "note", f"the compiler of the Xcode command line tools {MISSING}", "run `xcode-select --install`"
        )
    if not compiler:
        return Finding("note", f"a C++ compiler {MISSING}", f"run {LINUX_TOOLS}")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        fix = "install Python from python.org" if is_mac else f"run {LINUX_TOOLS}"
        return Finding("note", f"Python's header Python.h {MISSING}", fix)
    return Finding("ok", f"C++ compiler {compiler}")


def find_compiler() -> str:
    """Path of the C++ compiler, the one CXX names or the first of the usual names; empty if there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    paths = (shutil.which(name) for name in names)
    return next((path for path in paths if path and not is_stand_in(path)), "")


def is_stand_in(path: str) -> bool:
    """Whether this is macOS's stand-in for a tool that is not installed: running it opens a dialog."""
    if platform.system() != "Darwin" or Path(path).parent != Path("/usr/bin"):
        return False
    developer_folder = answer_of("xcode-select", "-p")
    return not developer_folder or not Path(developer_folder).is_dir()


def check_cuda_driver() -> Finding:
    """Whether the NVIDIA driver is new enough for the CUDA that MLX brings along."""
    version = answer_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    need = f"MLX's CUDA 13 needs {OLDEST_CUDA_DRIVER} or newer"
    fix = "install a newer one (Ubuntu: `sudo ubuntu-drivers install`), or unset TINY_LLM_BACKEND"
    if not version:
        return Finding("note", f"nvidia-smi reports no NVIDIA driver, and {need}", fix)
    if numbers_of(version) < (OLDEST_CUDA_DRIVER,):
        return Finding("problem", f"nvidia-smi reports NVIDIA driver {version}, and {need}", fix)
    return Finding("ok", f"NVIDIA driver {version}")


def answer_of(*command: str) -> str:
    """What a command prints; empty if it fails or does not exist."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def numbers_of(version: str) -> Version:
    """The numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)))
