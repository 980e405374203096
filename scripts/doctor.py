"""Say what the course needs of this machine, whether it is there, and what to do where it is not."""

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts import setup

try:
    import typer
    from rich.console import Console
    from rich.text import Text
except ImportError as error:
    sys.exit(f"problem {error.name} is not installed: run `pdm run setup`")

from scripts.checkpoints import REPO, SHIPPED_MODEL, is_complete
from scripts.errors import usage_errors
from scripts.learner import PACKAGE, Package, check_syntax, read_package

Level = Literal["ok", "note", "problem"]
STYLES = {"ok": "green", "note": "yellow", "problem": "red"}
PROBLEM_EXIT_CODE = 1
COMPILERS = ("c++", "clang++", "g++")
MIN_FREE_GB = 2
IMPORT_SECONDS = 120
DEVICE_PROBE = "import mlx.core as mx; mx.eval(mx.ones(2) + 1); print(mx.default_device())"

KERNEL_PROBE = """
from tiny_llm_ref import accelerate, native
print(accelerate.best_matmul() is not None, native.num_blas_calls() is not None)
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report; `fix` is empty where all is well."""

    level: Level
    text: str
    fix: str = ""


def main(package: Package = PACKAGE) -> None:
    """Check Python, the packages, MLX, the compiler, the checkpoint, the disk, your package and the terminal.

    Exit code 1 says that there is a problem.

    Example: pdm run doctor
    """
    with usage_errors():
        console = Console(highlight=False)
        levels = set()
        for finding in findings(package):
            levels.add(finding.level)
            console.print(line_of(finding), soft_wrap=True)
    sys.exit(PROBLEM_EXIT_CODE if "problem" in levels else 0)


def findings(package: Path) -> Iterable[Finding]:
    """Every finding, as each check ends."""
    checks: list[Callable[[], Finding]] = [
        lambda: check_python(sys.version_info[:2]),
        lambda: check_packages(setup.LOCK_FILE, setup.read_stamp()),
        check_mlx,
        lambda: check_compiler(COMPILERS),
        check_kernels,
        lambda: check_checkpoint(REPO / "models" / SHIPPED_MODEL),
        lambda: check_disk(REPO, shutil.disk_usage(REPO).free),
        lambda: check_package(package),
        lambda: check_encoding(sys.stdout.encoding or "ascii"),
    ]
    for check in checks:
        yield check()


def line_of(finding: Finding) -> Text:
    """Level, finding and fix."""
    fix = f": {finding.fix}" if finding.fix else ""
    return Text.assemble((f"{finding.level:8}", STYLES[finding.level]), f"{finding.text}{fix}")


def check_python(version: tuple[int, int]) -> Finding:
    """MLX has wheels for some versions only."""
    oldest, newest = setup.SUPPORTED_PYTHONS
    name = f"Python {version[0]}.{version[1]}"
    if oldest <= version <= newest:
        return Finding("ok", name)
    return Finding(
        "problem",
        f"{name} is not supported, {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]} are",
        "choose one with `pdm use PYTHON`",
    )


def check_packages(lock_file: Path, stamp: tuple[str, set[str]]) -> Finding:
    """What is installed is what pdm.lock names, as far as the last set-up wrote down."""
    lock_hash, groups = stamp
    if not lock_hash:
        return Finding("problem", "the locked packages are not installed", "run `pdm run setup`")
    if lock_hash != hashlib.sha256(lock_file.read_bytes()).hexdigest():
        return Finding("problem", "pdm.lock changed since the packages were installed", "run `pdm run setup`")
    return Finding("ok", f"packages of pdm.lock installed ({', '.join(sorted(groups))})")


def check_mlx() -> Finding:
    """MLX computes something, in a process of its own: a broken backend can end the process."""
    try:
        version = importlib.metadata.version("mlx")
    except importlib.metadata.PackageNotFoundError:
        return Finding("problem", "MLX is not installed", "run `pdm run setup`")
    result = run_python(DEVICE_PROBE)
    if result.returncode != 0:
        reason = last_line(result.stderr) or f"its process ended with code {result.returncode}"
        fix = f"remove {shown_environment()} and run `pdm run setup`"
        return Finding("problem", f"MLX {version} does not compute: {reason}", fix)
    device = "the GPU" if "gpu" in result.stdout else "the CPU"
    return Finding("ok", f"MLX {version}, {backend()} backend, computing on {device}")


def backend() -> str:
    """The backend of MLX that is installed."""
    installed = {name.lower() for name in map(distribution_name, importlib.metadata.distributions()) if name}
    if any(name.startswith("mlx-cuda") for name in installed):
        return "CUDA"
    return "Metal" if "mlx-metal" in installed else "CPU"


def distribution_name(distribution: importlib.metadata.Distribution) -> str:
    """The name of an installed package."""
    return str(distribution.metadata["Name"] or "")


def check_compiler(names: Iterable[str]) -> Finding:
    """A C++ compiler, which the kernels of week 2 need from day 3 on."""
    for name in names:
        if path := shutil.which(name):
            return Finding("ok", f"C++ compiler {path}")
    fix = (
        "run `xcode-select --install`"
        if sys.platform == "darwin"
        else "install g++ (Debian: `apt install g++`)"
    )
    return Finding("note", "no C++ compiler found, and week 2 needs one from day 3 on", fix)


def check_kernels() -> Finding:
    """The reference's kernels compile and compute the right thing, and on Linux MLX has a fast BLAS."""
    result = run_python(KERNEL_PROBE)
    if result.returncode != 0:
        return Finding("problem", f"the kernels cannot be tried: {last_line(result.stderr)}")
    has_kernels, has_blas = (word == "True" for word in result.stdout.split())
    if has_kernels and (has_blas or sys.platform != "linux"):
        blas = ", and MLX multiplies with OpenBLAS" if has_blas else ""
        return Finding("ok", f"the kernels compile and are right{blas}")
    what = "the kernels" if not has_kernels else "the fast BLAS"
    reason = last_line(result.stderr).removeprefix("tiny-llm: ") or "a TINY_LLM_ variable turns it off"
    return Finding("note", f"{what} cannot be used here, so models are slow: {reason}")


def check_checkpoint(folder: Path) -> Finding:
    """The checkpoint that ships is whole."""
    if is_complete(folder):
        return Finding("ok", f"checkpoint {folder.name} is complete")
    fix = f"run `git checkout -- models/{folder.name}`"
    return Finding("problem", f"the checkpoint {folder.name} is not complete", fix)


def check_disk(folder: Path, free_bytes: int) -> Finding:
    """Room for builds and a larger checkpoint."""
    text = f"{free_bytes / 1e9:.1f} GB free on the disk"
    if free_bytes >= MIN_FREE_GB * 1e9:
        return Finding("ok", text)
    return Finding("note", text, f"free {MIN_FREE_GB} GB if you want a larger checkpoint or build kernels")


def check_package(package: Path) -> Finding:
    """The learner's package can be read and imported."""
    try:
        check_syntax(read_package(package), package)
    except ValueError as error:
        return Finding("problem", str(error))
    result = run_python(f"import sys; sys.path.insert(0, {str(package.parent)!r}); import {package.name}")
    if result.returncode == 0:
        return Finding("ok", f"{package.name} imports")
    return Finding(
        "problem",
        f"{package.name} does not import: {last_line(result.stderr)}",
        f"`python -c 'import {package.name}'` shows the line",
    )


def check_encoding(encoding: str) -> Finding:
    """The terminal can show what the commands print."""
    try:
        "✓✗·█ 🌱".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return Finding(
            "problem", f"the terminal's encoding is {encoding}", "set PYTHONUTF8=1, or a UTF-8 locale"
        )
    return Finding("ok", f"terminal encoding {encoding}")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, which may take a while but not for ever."""
    command = [sys.executable, "-B", "-c", code]
    try:
        return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {IMPORT_SECONDS} s")


def last_line(text: str) -> str:
    """The line of a traceback that says what happened."""
    return (text.strip().splitlines() or [""])[-1]


def shown_environment() -> str:
    """The environment's folder, as the learner would type it."""
    prefix = Path(sys.prefix)
    return str(prefix.relative_to(REPO) if prefix.is_relative_to(REPO) else prefix)


if __name__ == "__main__":
    typer.run(main)
