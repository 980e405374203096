"""Install what `pdm.lock` names into the running environment, unless that is done already.

Every `pdm run` command of the course comes through here, so a fresh clone needs no other step. It uses the
standard library and pip alone: a lock file is worth something only if nothing else resolves it again.

    python scripts/setup.py [--dev] [--group NAME] [-m MODULE ARGUMENTS]

The Linux backend is MLX's CPU one; `TINY_LLM_BACKEND=cuda` in a new environment chooses CUDA.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # first of all, so that Ctrl-C is quiet while the others are imported
    import errors
    import waiting

    if errors.begin():
        waiting.show_progress("starting")
    # Importing the package takes what this script installs; the two are its modules from now on.
    sys.modules.update({"scripts.errors": errors, "scripts.waiting": waiting})
else:
    from scripts import errors, waiting

import argparse
import hashlib
import importlib.util
import os
import runpy
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from machine import Finding, check_machine, check_python
else:
    from scripts.machine import Finding, check_machine, check_python

ROOT = Path(__file__).resolve().parent.parent
LOCK_FILE = ROOT / "pdm.lock"
STAMP_FILE = Path(sys.prefix) / "tiny-llm-setup.txt"
BACKENDS = ("cpu", "cuda")
USE_KERNELS = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the set-up's, and ends this process without a word
import scripts  # before MLX, which takes the BLAS that is there
import mlx.core as mx
from accelerated.accelerate import best_operations
best_operations(mx.float32).paged_attention()  # the type of the models that ship
"""
OPTIONAL_GROUPS = ("book", "pages", "platforms", "clients", "routers", "engines")


def main() -> None:
    """Install if the last set-up here was of another lock file or of fewer groups, then run a module."""
    # argparse would drop a "--" that belongs to the module
    given = sys.argv[1:]
    end = given.index("-m") if "-m" in given else len(given)
    own, module = given[:end], given[end + 1 :]
    parser = argparse.ArgumentParser(
        description="Install what pdm.lock names, if it is not installed yet.",
        epilog="With -m MODULE and its arguments at the end, run that module then.",
    )
    parser.add_argument("--dev", action="store_true", help="the linter and the type checker too")
    parser.add_argument("--group", action="append", default=[], choices=OPTIONAL_GROUPS, help="a group more")
    arguments = parser.parse_args(own)
    with errors.usage_errors():
        has_installed = set_up({*arguments.group} | ({"dev"} if arguments.dev else set()))
    if module:
        os.chdir(ROOT)
        if has_installed:  # what Python has read of its environment is not so any more
            waiting.show_progress("")
            os.execv(sys.executable, [sys.executable, "-m", *module])
        else:
            run_module(*module)


def run_module(name: str, *arguments: str) -> None:
    """Go on as `python -m NAME ARGUMENTS` in this process, which is sooner there than a new one."""
    sys.path[0] = str(ROOT)
    sys.argv[1:] = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def set_up(extra_groups: set[str]) -> bool:
    """Install what is missing of the course's packages and of these groups, and say whether any was."""
    report(check_python(sys.version_info[:2]))
    groups = {"default", chosen_backend(), *extra_groups}
    lock_hash = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    stamp_hash, stamp_groups = read_stamp()
    if stamp_hash == lock_hash and groups <= stamp_groups:
        return False
    if stamp_hash == lock_hash:
        groups |= stamp_groups
    for finding in check_machine(chosen_backend()):
        report(finding)
    install(groups)
    STAMP_FILE.write_text(" ".join([lock_hash, *sorted(groups)]))
    return True


def report(finding: Finding) -> None:
    """Stop in one sentence at a problem; print a note and go on."""
    sentence = f"{finding.text}: {finding.fix}."
    if finding.level == "problem":
        sys.exit(sentence)
    if finding.level == "note":
        print(f"Note: {sentence}", file=sys.stderr)


def chosen_backend() -> str:
    """The backend named by TINY_LLM_BACKEND, else the one installed before, else the CPU's."""
    installed = [name for name in BACKENDS if name in read_stamp()[1]]
    backend = os.environ.get("TINY_LLM_BACKEND", (installed or ["cpu"])[0])
    if backend not in BACKENDS:
        sys.exit(f"TINY_LLM_BACKEND is {backend!r}: set it to one of {', '.join(BACKENDS)}, or unset it.")
    if installed and backend not in installed:
        # Both wheels carry the same library file, so one cannot be laid over the other.
        sys.exit(
            f"This environment has MLX's {installed[0]} backend: remove it (`rm -r {sys.prefix}`) to change."
        )
    return backend


def read_stamp() -> tuple[str, set[str]]:
    """Hash of the lock file and groups installed by the last set-up here; empty before the first."""
    if not STAMP_FILE.exists():
        return "", set()
    lock_hash, *groups = STAMP_FILE.read_text().split()
    return lock_hash, set(groups)


def install(groups: set[str]) -> None:
    """Let pip install the locked files of these groups, and no others."""
    ensure_pip()
    requirements = locked_requirements(groups)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requirements.txt"
        path.write_text("\n".join(requirements) + "\n")
        print(
            f"Installing up to {len(requirements)} locked packages into {sys.prefix}, once.", file=sys.stderr
        )
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
        for name in packages_without_wheel(groups):
            options += ["--no-binary", name]
        command = [sys.executable, "-m", "pip", "install", *options, "--requirement", str(path)]
        if run_with_counter(command) != 0:
            sys.exit(
                "The installation stopped; the lines above say why. Mend that and run the command again."
            )
    compile_kernels()


def compile_kernels() -> None:
    """Fill the cache of compiled code, so that no later command seems to hang; what fails there says why."""
    print("Compiling the kernels, once.", file=sys.stderr)
    waiting.show_progress("compiling")
    subprocess.run([sys.executable, "-c", USE_KERNELS], cwd=ROOT)
    waiting.show_progress("")


def ensure_pip() -> None:
    """pdm makes environments without pip; Python carries a copy of it."""
    if importlib.util.find_spec("pip"):
        return
    result = subprocess.run([sys.executable, "-m", "ensurepip"], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(
            "This Python has no pip and no ensurepip: install them (Debian: `apt install python3-venv`)."
        )


def locked_requirements(groups: set[str]) -> list[str]:
    """Lines for pip, one a package: name, version, marker and the hash of every file it may have."""
    packages = load_toml(LOCK_FILE.read_text(encoding="utf-8"))["package"]
    lines = [requirement_line(package) for package in packages if groups & set(package["groups"])]
    return list(dict.fromkeys(lines))  # a package with extras is there twice


def packages_without_wheel(groups: set[str]) -> list[str]:
    """Names of the packages of these groups that pip has to compile."""
    packages = load_toml(LOCK_FILE.read_text(encoding="utf-8"))["package"]
    return [
        package["name"]
        for package in packages
        if groups & set(package["groups"])
        and not any(file["file"].endswith(".whl") for file in package["files"])
    ]


def requirement_line(package: dict[str, Any]) -> str:
    """One line of a requirements file."""
    marker = f" ; {package['marker']}" if "marker" in package else ""
    hashes = " ".join(f"--hash={file['hash']}" for file in package["files"])
    return f"{package['name']}=={package['version']}{marker} {hashes}"


def load_toml(text: str) -> dict[str, Any]:
    """Parse TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from pip._vendor import tomli as tomllib  # Python 3.10 has no TOML reader of its own
    return tomllib.loads(text)


def run_with_counter(command: list[str]) -> int:
    """Run pip with one line of progress in a terminal, and all it said if it fails."""
    lines, num_collected = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Collecting "):
                    num_collected += 1
                    waiting.show_progress(f"{num_collected} {line.split()[1]}")
                elif line.startswith("Installing "):
                    waiting.show_progress("unpacking")
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # which lets pip clear up, as it does where it got one itself
            raise
    waiting.show_progress("")
    if process.returncode != 0:
        sys.stderr.writelines(line for line in lines if not line.startswith("Ignoring "))
    return process.returncode


if __name__ == "__main__":
    main()
