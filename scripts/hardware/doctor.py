"""Say what the course needs of this machine, whether it is there, and what to do where it is not."""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from scripts import setup
from scripts.machine import Finding, check_compiler, check_machine, check_python, find_compiler

try:
    import typer  # noqa: F401, what scripts.command needs
    from rich.console import Console
    from rich.text import Text
except ImportError as error:
    lacking = Finding("problem", f"the package {error.name} is not installed", "run `pdm run setup`")
    for finding in (check_python(sys.version_info[:2]), *check_machine("cpu"), lacking):
        if finding.level != "ok":
            print(f"{finding.level:8}{finding.text}: {finding.fix}")
    sys.exit(1)

from scripts.checkpoints.files import REPO, SHIPPED_MODELS, is_complete
from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.learn.learner import PACKAGE, Package, check_syntax, read_package

STYLES = {"ok": "green", "note": "yellow", "problem": "red"}
PROBLEM_EXIT_CODE = 1
MIN_FREE_GB = 2
IMPORT_SECONDS = 120
DEVICE_PROBE = "import scripts, mlx.core as mx; mx.eval(mx.ones(2) + 1); print(mx.default_device())"

KERNEL_PROBE = "from scripts.hardware.kernel_probe import probe; print(probe({kind!r}))"
MODEL_PROBE = """
import os, scripts
from kernel_runtime import native
if native.kernels_mode() != "off":
    os.environ["TINY_LLM_KERNELS"] = "own"  # whether the kernels work, not whether they win
from accelerated import accelerate
print(accelerate.best_operations().matmul is not None, native.num_blas_calls() is not None)
"""
COMPILER_FIX = "update the C++ compiler, or name another one in the variable CXX"
KERNEL_KINDS = {
    "cpu": ("C++ kernels", COMPILER_FIX),
    "gpu": ("GPU kernels", "update the system and its GPU driver, or set TINY_LLM_KERNELS=off"),
    "emulator": ("GPU kernels under the emulator", COMPILER_FIX),
}


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
    yield check_python(sys.version_info[:2])
    stamp = setup.read_stamp()
    yield from check_machine("cuda" if "cuda" in stamp[1] else "cpu")
    checks: list[Callable[[], Finding | None]] = [
        lambda: check_packages(setup.LOCK_FILE, stamp),
        check_mlx,
        *(partial(check_kernels, kind) for kind in KERNEL_KINDS),
        check_model_parts,
        *(partial(check_checkpoint, REPO / "models" / name) for name in SHIPPED_MODELS),
        lambda: check_disk(REPO, shutil.disk_usage(REPO).free),
        lambda: check_package(package),
        lambda: check_encoding(sys.stdout.encoding or "ascii"),
    ]
    for check in checks:
        if finding := check():
            yield finding


def line_of(finding: Finding) -> Text:
    """Level, finding and, on a line of its own, the fix."""
    fix = f"\n        fix: {finding.fix}" if finding.fix else ""
    return Text.assemble((f"{finding.level:8}", STYLES[finding.level]), f"{finding.text}{fix}")


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
        fix = f"remove {shown_environment()} and run `pdm run setup`"
        return Finding("problem", f"MLX {version} does not compute: {reason_of(result)}", fix)
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


def check_kernels(kind: str) -> Finding | None:
    """One kernel of a kind compiles, loads and computes what MLX does; None if this machine can run none."""
    if kind != "gpu" and not find_compiler():
        return None
    what, fix = KERNEL_KINDS[kind]
    if kind == "cpu":
        fix = check_compiler().fix or fix  # Python's headers may be what it lacks
    result = run_python(KERNEL_PROBE.format(kind=kind))
    answer = last_line(result.stdout)
    if result.returncode != 0:
        return Finding("problem", f"{what} do not work here: {reason_of(result)}", fix)
    if answer == "wrong":
        fix = "open an issue with the report that `pdm run hardware-report` writes"
        return Finding("problem", f"{what} compute something else than MLX does", fix)
    return Finding("ok", f"{what} compile, load and compute what MLX does") if answer == "right" else None


def check_model_parts() -> Finding:
    """Models are made of kernels on the default device, and on Linux MLX has a fast BLAS."""
    result = run_python(MODEL_PROBE)
    if result.returncode != 0:
        return Finding("problem", f"the parts of a model cannot be tried: {reason_of(result)}")
    has_kernels, has_blas = (word == "True" for word in result.stdout.split())
    if has_kernels and (has_blas or sys.platform != "linux"):
        blas = ", and MLX multiplies with OpenBLAS" if has_blas else ""
        return Finding("ok", f"models use the kernels{blas}")
    switch = "TINY_LLM_BLAS" if has_kernels else "TINY_LLM_KERNELS"
    notice = last_line(result.stderr).removeprefix("tiny-llm: ")
    reason = re.sub(r"\. TINY_LLM_\w+=off hides this line\.$", "", notice) or f"{switch} is off"
    return Finding("note", f"models are slow here: {reason}")


def check_checkpoint(folder: Path) -> Finding:
    """A checkpoint that ships is whole."""
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
    # With `load` comes all that models are made of; it stands on the package of that name alone.
    statement = "from tiny_llm import load" if package.name == "tiny_llm" else f"import {package.name}"
    result = run_python(f"import sys; sys.path.insert(0, {str(package.parent)!r}); {statement}")
    if result.returncode == 0:
        return Finding("ok", f"{package.name} imports")
    return Finding(
        "problem",
        f"{package.name} does not import: {last_line(result.stderr)}",
        f"`python -c '{statement}'` shows the line",
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


def reason_of(result: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed: the message of its error, or its exit code if it left none."""
    line = last_line(result.stderr)
    return re.sub(r"^[\w.]*BuildError: ", "", line) or f"its process ended with code {result.returncode}"


def last_line(text: str) -> str:
    """The line of a traceback that says what happened."""
    return (text.strip().splitlines() or [""])[-1]


def shown_environment() -> str:
    """The environment's folder, as the learner would type it."""
    prefix = Path(sys.prefix)
    return str(prefix.relative_to(REPO) if prefix.is_relative_to(REPO) else prefix)


if __name__ == "__main__":
    run_command(main, "doctor")
