"""The machine and the versions that a report is about."""

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scripts.course import ROOT
from scripts.hardware import doctor
from scripts.hardware.processor import num_cores, processor
from scripts.machine import answer_of, find_compiler

GPU_PROBE = """
import json
import mlx.core as mx
gpu = mx.device_count(mx.gpu) > 0
print(json.dumps(mx.device_info(mx.gpu).get("device_name", "unknown") if gpu else "none"))
"""
UNKNOWN = "unknown"


def describe_machine() -> dict[str, str | int]:
    """Processor, cores, memory, GPU, system: nothing that tells whose machine it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": num_cores(),
        "memory_gb": round(memory / 2**30),
        "gpu": gpu(),
        "system": system(),
    }


def describe_versions() -> dict[str, str]:
    """The course's commit, Python, MLX with its backend, mlx-lm, the compiler, and variables that are set."""
    return {
        "course": commit(),
        "python": platform.python_version(),
        "mlx": version_of("mlx"),
        "mlx_lm": version_of("mlx-lm"),
        "backend": doctor.backend(),
        "compiler": compiler(),
        "settings": settings(),
    }


def gpu() -> str:
    """The GPU's name as MLX gives it, asked in a process of its own: a broken backend can end it."""
    answer = answer_of(sys.executable, "-c", GPU_PROBE)
    return str(json.loads(answer.splitlines()[-1])) if answer else UNKNOWN


def system() -> str:
    """The operating system and its version."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({platform.machine()})"
    except (OSError, KeyError):
        return f"{platform.system()} ({platform.machine()})"


def commit() -> str:
    """The commit of the course, and whether anything but the learner's package differs from it."""
    git = ("git", "-C", str(ROOT))
    name = answer_of(*git, "rev-parse", "--short=12", "HEAD")
    changes = answer_of(*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!tiny_llm")
    return f"{name} with changes" if name and changes else name or UNKNOWN


def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def compiler() -> str:
    """What the C++ compiler says of itself in its first line."""
    path = find_compiler()
    if not path:
        return "none"
    return answer_of(path, "--version").partition("\n")[0].replace(path, Path(path).name) or UNKNOWN


def settings() -> str:
    """The variables of the course and of MLX that are set, but for the folder of the cache."""
    names = sorted(name for name in os.environ if name.startswith(("TINY_LLM_", "MLX_")))
    return ", ".join(f"{name}={os.environ[name]}" for name in names if name != "TINY_LLM_CACHE") or "none"
