"""TINY_LLM_DEVICE chooses the device that MLX computes on, for the package and for every command."""

import os
import subprocess
import sys

import mlx.core as mx
import pytest

from scripts.course import ROOT
from scripts.errors import USAGE_EXIT_CODE

STAND_IN = ROOT / "tests" / "platforms" / "stand_in"

# As if MLX had chosen something else before the package is imported: another index is a device of its own.
BEFORE = "import mlx.core as mx; mx.set_default_device(mx.Device(mx.cpu, 1)); import tiny_llm_ref; "
IN_A_THREAD = "import threading; threading.Thread(target=lambda: print(mx.default_device())).start()"
COMMANDS = ("scripts.learn.hint", "scripts.learn.test", "benches.bandwidth", "pytest")
NO_GPU = "TINY_LLM_DEVICE is gpu, but MLX has no GPU here: set it to cpu, or unset it"


def run(*arguments: str, device: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and this device; without OpenBLAS, which does not matter here."""
    environment = {**os.environ, "TINY_LLM_DEVICE": device, "TINY_LLM_BLAS": "off"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("device", ["cpu", "CPU"])
def test_importing_the_package_sets_the_device_for_every_thread(device: str) -> None:
    result = run("-c", BEFORE + IN_A_THREAD, device=device)
    assert result.stdout.strip() == "Device(cpu, 0)"


def test_without_the_variable_the_device_stays() -> None:
    result = run("-c", BEFORE + IN_A_THREAD, device="")
    assert result.stdout.strip() == "Device(cpu, 1)"


def test_a_command_sets_the_device_before_it_begins() -> None:
    program = BEFORE.replace("tiny_llm_ref", "scripts")
    assert run("-c", program + IN_A_THREAD, device="cpu").stdout.strip() == "Device(cpu, 0)"


def test_the_gpu_is_chosen_or_one_sentence_says_that_there_is_none() -> None:
    result = run("-c", BEFORE + IN_A_THREAD, device="gpu")
    if mx.is_available(mx.gpu):
        assert result.stdout.strip() == "Device(gpu, 0)"
    else:
        assert result.stderr.splitlines()[-1] == f"ValueError: {NO_GPU}"


def test_a_command_that_lacks_its_gpu_says_so_in_one_line() -> None:
    result = run("-m", "scripts.learn.hint", "--help", device="gpu")
    lacking = (USAGE_EXIT_CODE, f"error: {NO_GPU}\n")
    assert (result.returncode, result.stderr) == ((0, "") if mx.is_available(mx.gpu) else lacking)


@pytest.mark.parametrize(
    ("device", "computing_on", "rope"), [("cpu", "the CPU", "FusedRope"), ("", "the GPU", "FusedRope")]
)
def test_on_a_mac_the_cpu_runs_its_own_kernels_in_a_model(
    device: str, computing_on: str, rope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.delenv("ASKED_FOR_DEVICE", raising=False)  # with which it only takes notes
    program = (
        "from scripts.hardware.doctor import check_mlx; from accelerated import accelerate; "
        "print(check_mlx().text.rpartition(' on ')[2], accelerate.best_operations().rope.__name__, sep=', ')"
    )
    result = run("-c", program, device=device)
    assert (result.stdout, result.stderr) == (f"{computing_on}, {rope}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_an_unknown_device_in_one_line(command: str) -> None:
    result = run("-m", command, device="tpu")
    expected = "error: TINY_LLM_DEVICE is 'tpu': set it to cpu or gpu, or unset it\n"
    assert (result.returncode, result.stdout, result.stderr) == (USAGE_EXIT_CODE, "", expected)


@pytest.mark.skipif(sys.platform != "linux", reason="only MLX's Linux wheel has the slow BLAS")
def test_the_fast_blas_still_comes_before_mlx() -> None:
    program = "from kernel_runtime import native; print(native.num_blas_calls())"
    environment = {**os.environ, "TINY_LLM_DEVICE": "cpu", "TINY_LLM_BLAS": "on"}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (result.stdout.strip(), result.stderr) == ("0", "")
