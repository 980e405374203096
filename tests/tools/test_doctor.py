"""Doctor names what is wrong and its fix, and never calls all well while one kind of kernel is broken."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import machine
from scripts.course import ROOT
from scripts.hardware import doctor
from scripts.machine import Finding, check_python
from scripts.setup import LOCK_FILE
from scripts.sources.files import write
from scripts.sources.render import render
from tests.support.commands import run, run_apart

KERNELS = ROOT / "tiny_llm_ref" / "kernels"
REFUSES_THE_EXTENSION = """#!/bin/sh
for argument; do last=$argument; done
case "$*" in
  *-lmlx*) echo "ld: error: unknown option: dynamic_lookup" >&2; exit 1 ;;
  *extension.cpp*|*nb_combined.cpp*) touch "$last" ;;
  *) exec c++ "$@" ;;
esac
"""
GPU_BY_EMULATOR = """
import mlx.core as mx
from kernel_runtime.gpu_kernel import GpuKernel
from kernel_runtime.launch import Target
mx.metal.is_available, mx.cuda.is_available = {metal}, {cuda}
GpuKernel._run_on_gpu = lambda self, language, text, launch: (
    {factor} * self._run_emulated(Target(language, "emulator"), launch)
)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A starter that a test may change."""
    write(render(()), tmp_path / "tiny_llm")
    return tmp_path / "tiny_llm"


def probe_after(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let doctor's probes of kernels run other code first; braces stand for themselves."""
    escaped = code.replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(doctor, "KERNEL_PROBE", f"{escaped}\n{doctor.KERNEL_PROBE}")


def test_doctor_finds_nothing_wrong_here() -> None:
    result = run_apart("scripts.hardware.doctor", "--package", "tiny_llm_ref")
    assert "problem" not in result.stdout
    assert result.returncode == 0
    for words in (
        "MLX 0.",
        "C++ kernels compile",
        "GPU kernels under the emulator compile",
        "models use the",
    ):
        assert f"ok      {words}" in result.stdout
    assert "\x1b" not in result.stdout


def test_doctor_names_each_failure_and_its_fix(package: Path) -> None:
    (package / "ops/basics.py").write_text("no_such_name\n")
    found = [
        check_python((3, 9)),
        doctor.check_packages(LOCK_FILE, ("", set())),
        doctor.check_packages(LOCK_FILE, ("of another lock file", {"cpu"})),
        doctor.check_checkpoint(package),
        doctor.check_package(package),
        doctor.check_package(package / "nowhere"),
        doctor.check_encoding("ascii"),
        doctor.check_encoding("nonsense"),
    ]
    assert {finding.level for finding in found} == {"problem"}
    assert doctor.check_disk(ROOT, 10).level == "note"
    assert "NameError" in found[4].text
    assert all("`" in finding.fix + finding.text or "PYTHONUTF8" in finding.fix for finding in found)


def test_doctor_shows_every_finding_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Finding("problem", "the machine lacks a wheel", "turn it")
    monkeypatch.setattr(doctor, "check_machine", lambda backend: [planted])
    assert planted in doctor.findings(ROOT / "tiny_llm_ref")
    assert doctor.line_of(planted).plain == "problem the machine lacks a wheel\n        fix: turn it"


def test_doctor_without_packages_says_what_the_machine_lacks_too() -> None:
    program = "import runpy; runpy.run_module('scripts.hardware.doctor', run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program],  # -S: no site-packages
        cwd=ROOT,
        env={**os.environ, "CXX": "no-such-compiler", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    note, problem = result.stdout.splitlines()
    assert note.startswith("note    a C++ compiler cannot be found")
    assert re.fullmatch(r"problem the package \w+ is not installed: run `pdm run setup`", problem)
    assert not result.stderr


def test_doctor_reports_an_mlx_that_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEVICE_PROBE", "raise RuntimeError('no device')")
    finding = doctor.check_mlx()
    assert (finding.level, "RuntimeError: no device" in finding.text) == ("problem", True)


def test_doctor_exits_with_1_at_a_problem(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")  # so that no kernel is tried
    (package / "ops/basics.py").write_text("def f(:\n")
    result = run("scripts.hardware.doctor", "--package", str(package))
    assert result.returncode == 1
    assert re.search(r"^problem .*basics\.py, line 1: invalid syntax$", result.stdout, re.M)


# Kernels


def test_an_extension_that_cannot_be_linked_is_a_problem_of_the_cpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(REFUSES_THE_EXTENSION)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    finding = doctor.check_kernels("cpu")
    assert finding is not None
    assert finding.level == "problem"
    assert finding.text.startswith(
        "C++ kernels do not work here: the compiler refused: ld: error: unknown option"
    )
    assert "CXX" in finding.fix
    emulator = doctor.check_kernels("emulator")
    assert emulator is not None
    assert emulator.level == "ok"


def test_kernels_without_python_s_headers_say_how_to_get_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'x.h:21:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    finding = doctor.check_kernels("cpu")
    assert finding is not None
    assert ("Python.h" in finding.text, "python3-dev" in finding.fix) == (True, True)


def test_without_a_compiler_the_machine_s_finding_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.check_kernels("cpu") is doctor.check_kernels("emulator") is None


def test_a_cpp_kernel_that_computes_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (KERNELS / "cpu" / "quantized_matmul_simple.cpp").read_text()
    wrong = tmp_path / "quantized_matmul_simple.cpp"
    wrong.write_text(text.replace("float total = 0", "float total = 1"))
    assert wrong.read_text() != text
    code = "from pathlib import Path; from tiny_llm_ref.kernels.quantized_matmul import SIMPLE"
    probe_after(f"{code}; SIMPLE.file = Path({str(wrong)!r})", monkeypatch)
    finding = doctor.check_kernels("cpu")
    assert finding is not None
    assert (finding.level, finding.text) == ("problem", "C++ kernels compute something else than MLX does")
    assert "`pdm run hardware-report`" in finding.fix


@pytest.mark.parametrize("broken", ["metal/quantized_matvec.metal", "cuda/quantized_matvec.cu"])
def test_a_gpu_kernel_that_computes_something_else_under_the_emulator(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("metal", "cuda"):
        shutil.copytree(KERNELS / folder, tmp_path / folder)
    text = (tmp_path / broken).read_text()
    (tmp_path / broken).write_text(text.replace("+ bias", "- bias"))
    assert (tmp_path / broken).read_text() != text
    code = "from pathlib import Path; from tiny_llm_ref.kernels.gpu_operations import QUANTIZED_MATVEC"
    probe_after(
        f"{code}; object.__setattr__(QUANTIZED_MATVEC, 'folder', Path({str(tmp_path)!r}))", monkeypatch
    )
    finding = doctor.check_kernels("emulator")
    assert finding is not None
    assert finding.text == "GPU kernels under the emulator compute something else than MLX does"


@pytest.mark.parametrize("language", ["metal", "cuda"])
@pytest.mark.parametrize(("factor", "level"), [(1, "ok"), (2, "problem")])
def test_the_gpu_s_own_kernels_are_called_where_there_is_a_gpu(
    language: str, factor: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {name: f"lambda: {name == language}" for name in ("metal", "cuda")}
    probe_after(GPU_BY_EMULATOR.format(factor=factor, **has), monkeypatch)
    finding = doctor.check_kernels("gpu")
    assert finding is not None
    assert finding.level == level
    assert finding.text.startswith("GPU kernels co")


def test_a_gpu_that_refuses_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    code = GPU_BY_EMULATOR.format(factor=1, metal="lambda: False", cuda="lambda: True")
    probe_after(
        f"{code}\ndef refuse(*_): raise RuntimeError('no device')\nGpuKernel._run_on_gpu = refuse",
        monkeypatch,
    )
    finding = doctor.check_kernels("gpu")
    assert finding is not None
    assert (finding.level, "RuntimeError: no device" in finding.text) == ("problem", True)
    assert "driver" in finding.fix


@pytest.mark.parametrize("kind", list(doctor.KERNEL_KINDS))
def test_a_kernel_that_ends_its_process(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_after("import os; os.abort()", monkeypatch)
    finding = doctor.check_kernels(kind)
    assert finding is not None
    assert (finding.level, "its process ended with code -" in finding.text) == ("problem", True)


def test_doctor_says_why_models_do_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_model_parts().level == "ok"
    monkeypatch.setenv("TINY_LLM_KERNELS", "off")
    assert doctor.check_model_parts() == ("note", "models are slow here: TINY_LLM_KERNELS is off", "")
    monkeypatch.setenv("TINY_LLM_KERNELS", "on")
    monkeypatch.setenv("CXX", "no-such-compiler")
    finding = doctor.check_model_parts()
    assert (finding.level, "there is no C++ compiler here" in finding.text) == ("note", True)
    assert "hides this line" not in finding.text
    monkeypatch.setattr(doctor, "MODEL_PROBE", "raise RuntimeError('no kernels')")
    assert "no kernels" in doctor.check_model_parts().text
