"""What set-up and doctor say about a machine: every lack is planted, and must be named along with its fix."""

import ast
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_runtime import native
from scripts import machine, setup
from scripts.course import ROOT
from scripts.hardware.report import read_report
from scripts.setup import LOCK_FILE

LOCK = LOCK_FILE.read_text(encoding="utf-8")
SETUP = ROOT / "scripts" / "setup.py"
FIRST = ("machine", "errors", "waiting")
"""What set-up imports before it knows which Python it runs on."""


# The facts


def test_the_oldest_systems_are_those_of_the_locked_wheels() -> None:
    macos = {(int(a), int(b)) for a, b in re.findall(r'"mlx_metal-[^"]*macosx_(\d+)_(\d+)_arm64', LOCK)}
    glibc = {
        (int(a), int(b)) for a, b in re.findall(r'"mlx_c(?:pu|uda_13)-[^"]*manylinux_(\d+)_(\d+)_', LOCK)
    }
    assert (min(macos), glibc) == (machine.OLDEST_MACOS, {machine.OLDEST_GLIBC})
    pythons = [(3, int(minor)) for minor in re.findall(r'"mlx-[^"]*-cp3(\d+)-cp3\d+-macosx_14_0', LOCK)]
    assert (min(pythons), max(pythons)) == machine.SUPPORTED_PYTHONS
    assert "cp313" in LOCK  # the pattern above would not see 3.14 as 3.1


def test_no_other_locked_package_needs_a_newer_glibc() -> None:
    newest: dict[str, tuple[int, ...]] = {}
    for package in setup.load_toml(LOCK)["package"]:
        if {"default", "cpu"} & set(package["groups"]):
            files = " ".join(file["file"] for file in package["files"] if "x86_64" in file["file"])
            tags = [(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_x86_64", files)]
            if tags:
                newest[package["name"]] = min(tags)
    assert max(newest.values()) == machine.OLDEST_GLIBC == newest["mlx-cpu"]


@pytest.mark.parametrize("file", [SETUP, *(SETUP.with_name(f"{name}.py") for name in FIRST)])
def test_an_old_python_can_read_what_runs_first(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text
    allowed = {*sys.stdlib_module_names, *FIRST, "scripts", "pip"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [x.name for x in node.names]
            assert {name.split(".")[0] for name in names} <= allowed


@pytest.mark.parametrize("version", ["(3, 8, 18)", "(3, 9, 6)", "(3, 14, 0)", "(4, 0, 0)"])
def test_setup_refuses_another_python_in_one_sentence(version: str) -> None:
    program = (
        f"import runpy, sys; sys.path.insert(0, {str(SETUP.parent)!r}); sys.version_info = {version}; "
        f"runpy.run_path({str(SETUP)!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    name = ".".join(re.findall(r"\d+", version)[:2])
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Python {name} is not supported, 3.10 to 3.13 are: run `pdm python install 3.13`")
    assert result.returncode == 1


# Machines


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; `answer` puts programs into it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def answer(programs: Path, name: str, text: str, code: int = 0) -> Path:
    """A program that prints a text."""
    path = programs / name
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def be_a_mac(monkeypatch: pytest.MonkeyPatch, processor: str = "arm64", version: str = "15.1") -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), processor))


def be_linux(monkeypatch: pytest.MonkeyPatch, processor: str, libc: tuple[str, str]) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)


def test_python_under_rosetta(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(programs, "sysctl", "1")
    be_a_mac(monkeypatch, "x86_64", "10.16")
    finding = machine.check_system()
    assert (finding.level, "Rosetta" in finding.text) == ("problem", True)
    assert "python.org" in finding.fix
    assert "rm -rf .venv .pdm-python" in finding.fix


def test_an_intel_mac(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_mac(monkeypatch, "x86_64")
    for code, text in ((1, ""), (0, "0")):  # an Intel Mac has no such entry
        answer(programs, "sysctl", text, code)
        assert "Intel processor" in machine.check_system().text
        assert machine.check_system().level == "problem"


@pytest.mark.parametrize(
    ("version", "level"), [("13.7.1", "problem"), ("14.0", "ok"), ("15.1", "ok"), ("26.0", "ok")]
)
def test_an_old_macos(version: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_mac(monkeypatch, version=version)
    finding = machine.check_system()
    assert (finding.level, version in finding.text) == (level, True)
    assert ("14 or newer" in finding.text) == ("Software Update" in finding.fix) == (level == "problem")


@pytest.mark.parametrize(
    ("processor", "libc", "level", "words"),
    [
        ("x86_64", ("glibc", "2.34"), "problem", "glibc 2.34 is too old, MLX needs 2.35 or newer"),
        ("x86_64", ("glibc", "2.4"), "problem", "glibc 2.4 is too old"),
        ("x86_64", ("", ""), "problem", "does not use glibc"),
        ("riscv64", ("glibc", "2.40"), "problem", "no wheels for riscv64"),
        ("aarch64", ("glibc", "2.35"), "ok", "Linux, aarch64, glibc 2.35"),
        ("x86_64", ("glibc", "3.0"), "ok", "glibc 3.0"),
    ],
)
def test_linux(
    processor: str, libc: tuple[str, str], level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_linux(monkeypatch, processor, libc)
    finding = machine.check_system()
    assert (finding.level, words in finding.text) == (level, True)
    assert bool(finding.fix) == (level == "problem")


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert "WSL 2" in machine.check_system().fix


def test_an_active_conda_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert machine.check_environment() == ("ok", f"environment {tmp_path.name}", "")
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "science")
    finding = machine.check_environment()
    assert (finding.level, "conda environment science" in finding.text) == ("problem", True)
    assert "conda deactivate" in finding.fix
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert machine.check_environment() == ("ok", "environment .venv, made from conda's Python", "")


# The compiler


def test_a_mac_without_tools_is_asked_by_xcode_select(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_a_mac(monkeypatch)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for developer_folder, code in (("", 2), (str(tmp_path / "removed"), 0)):
        answer(programs, "xcode-select", developer_folder, code)
        finding = machine.check_compiler()
        assert (finding.level, finding.fix) == ("note", "run `xcode-select --install`")
        native.find_compiler.cache_clear()
        with pytest.raises(native.BuildError, match=r"no C\+\+ compiler"):
            native.find_compiler()
    answer(programs, "xcode-select", str(tmp_path))
    assert machine.check_compiler() == ("ok", "C++ compiler /usr/bin/c++", "")
    assert native.find_compiler() == "/usr/bin/c++"
    native.find_compiler.cache_clear()


def test_a_compiler_from_elsewhere_needs_no_tools_on_a_mac(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_a_mac(monkeypatch)
    monkeypatch.setattr(sys, "platform", "darwin")
    answer(programs, "xcode-select", "", 2)
    compiler = answer(programs, "clang++", "")
    native.find_compiler.cache_clear()
    assert machine.find_compiler() == native.find_compiler() == str(compiler)
    native.find_compiler.cache_clear()


def test_linux_without_a_compiler_or_headers(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = machine.check_compiler()
    assert (finding.level, "a C++ compiler" in finding.text) == ("note", True)
    assert "apt install g++ python3-dev" in finding.fix
    answer(programs, "g++", "")
    assert machine.check_compiler().level == "ok"
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(programs))
    finding = machine.check_compiler()
    assert (finding.level, "Python.h" in finding.text) == ("note", True)
    assert "python3-dev" in finding.fix


# The driver


@pytest.mark.parametrize(
    ("lines", "level"), [("550.54.14\n550.54.14", "problem"), ("579.99", "problem"), ("580.65.06", "ok")]
)
def test_a_driver_of_nvidia(lines: str, level: str, programs: Path) -> None:
    answer(programs, "nvidia-smi", lines)
    finding = machine.check_cuda_driver()
    assert (finding.level, lines.split()[0] in finding.text) == (level, True)
    assert ("CUDA 13 needs 580 or newer" in finding.text) == (level == "problem")


@pytest.mark.parametrize("code", [None, 9])
def test_no_driver_of_nvidia(code: int | None, programs: Path) -> None:
    if code:
        answer(programs, "nvidia-smi", "NVIDIA-SMI has failed because it could not reach the driver.", code)
    finding = machine.check_cuda_driver()
    assert (finding.level, "needs 580 or newer" in finding.text) == ("note", True)


def test_only_cuda_asks_for_the_driver(programs: Path) -> None:
    assert len(machine.check_machine("cuda")) == len(machine.check_machine("cpu")) + 1


# Set-up


@pytest.mark.parametrize("level", ["problem", "note", "ok"])
def test_setup_stops_at_a_problem_before_pip_runs(
    level: machine.Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed: list[set[str]] = []
    backends: list[str] = []

    def check(backend: str) -> list[machine.Finding]:
        backends.append(backend)
        return [machine.Finding(level, "the machine lacks a wheel", "turn it")]

    monkeypatch.setattr(setup, "STAMP_FILE", tmp_path / "stamp.txt")
    monkeypatch.setattr(setup, "install", installed.append)
    monkeypatch.setattr(setup, "check_machine", check)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    monkeypatch.setenv("TINY_LLM_BACKEND", "cuda")
    if level == "problem":
        with pytest.raises(SystemExit, match=r"^the machine lacks a wheel: turn it\.$"):
            setup.main()
    else:
        setup.main()
    assert installed == ([] if level == "problem" else [{"default", "cuda"}])
    assert ("turn it" in capsys.readouterr().err) == (level == "note")
    assert backends == ["cuda"]


# What the book claims


def claims() -> dict[str, list[str]]:
    """The rows of the table of what has run on real hardware, by machine."""
    page = ROOT / "book/src/setup.md"
    table = page.read_text(encoding="utf-8").split("| machine | on real hardware |")[1]
    rows = [line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines()[2:]]
    return {machine_name: cells for machine_name, *cells in rows}


def test_the_book_claims_what_the_reports_show() -> None:
    claimed = claims()
    dates: dict[str, list[str]] = {name: [] for name in claimed}
    for file in sorted((ROOT / "book" / "records" / "hardware").glob("*.json")):
        report = read_report(file)
        by_backend = {"Metal": "Apple silicon", "CUDA": "NVIDIA card"}
        is_arm = "aarch64" in str(report.machine["system"])
        cpu = "Linux, arm64 CPU" if is_arm else "Linux, x86-64 CPU"
        dates[by_backend.get(report.versions["backend"], cpu)].append(report.date[:10])
    for name, on_these in dates.items():
        on_hardware = claimed[name][0]
        assert ("not yet" in on_hardware) == (not on_these)
        assert not on_these or max(on_these) in on_hardware
