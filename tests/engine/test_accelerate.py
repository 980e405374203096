"""A model is made of the fastest parts that work: each falls back by itself, and says so where it should."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from kernel_runtime.gpu_kernel import SUFFIXES
from kernel_runtime.launch import default_target
from scripts.course import ROOT, load_course
from scripts.packages import OF_LEARNER
from scripts.sources.files import read_reference, write
from scripts.sources.render import render
from tests.support.checkpoints import VARIANTS, build, save
from tiny_llm.accelerated.accelerate import best_operations

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
import scripts, tiny_llm, numpy
import mlx.core as mx
from dataclasses import replace
from pathlib import Path
from tiny_llm.accelerated import pretrained
from tiny_llm.accelerated.accelerate import best_operations
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.loader import load_model
best = best_operations(getattr(mx, sys.argv[6]))
print(best.matmul.__name__ if best.matmul else None, best.attention.__name__)
print(*(make.__name__ for make in (best.norm, best.rope, best.mlp, best.attention_layer)))
checkpoint = Path(sys.argv[3])
tokens = mx.array([[1, 5, 3, 7, 2, 8, 4]])
expected = load_model(checkpoint)(tokens)
pretrained.load_tokenizer = lambda path: None
def error():
    logits = pretrained.load(checkpoint)[0](tokens)
    return (mx.max(mx.abs(logits - expected)) / mx.max(mx.abs(expected))).item()
with_all = error()
pretrained.best_operations = lambda dtype: replace(best, matmul=best.matmul and quantized_matmul)
print(with_all <= float(sys.argv[4]), error() <= float(sys.argv[5]))
"""
# Of the largest logit. Activations of 16 bits cost between 2e-4 and 3.2e-4 on six such models, the products
# that keep them as floats 1e-6 together with all other parts.
WITH_ALL, WITHOUT_ROUNDING = 5e-4, 1e-5
DEVICE = "gpu" if mx.default_device() == mx.gpu else "cpu"
TARGET = default_target()
# What a model is made of where all kernels work.
PARTS = "FusedNorm FusedRope fused_mlp fused_attention"
# And without the learner's: those of a GPU are given, and its norm is MLX's own.
TURNED_OFF_PARTS = "RMSNorm RoPE Qwen3MLP Qwen3MultiHeadAttention"
PLAIN_PARTS = {"cpu": TURNED_OFF_PARTS, "gpu": PARTS}
UNCOMPILED_PARTS = {"cpu": TURNED_OFF_PARTS, "gpu": TURNED_OFF_PARTS.replace("RMSNorm", "FusedNorm")}
PRODUCT = {"cpu": "integer_matmul", "gpu": "tiled_matmul"}[DEVICE]
ATTENTION = {"cpu": "dispatch_attention", "gpu": "tiled_attention"}[DEVICE]
FAST = [f"{PRODUCT} {ATTENTION}", PARTS, "True True"]
PLAIN = ["None scaled_dot_product_attention_grouped", PLAIN_PARTS[DEVICE], "True True"]
UNCOMPILED = [PLAIN[0], UNCOMPILED_PARTS[DEVICE], "True True"]
TURNED_OFF = [PLAIN[0], TURNED_OFF_PARTS, "True True"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (variant,) = (variant for variant in VARIANTS if variant.name == "qwen3-4bit")
    return save(variant, build(variant), tmp_path_factory.mktemp("checkpoint"))


def run(
    sources: Mapping[Path, str], checkpoint: Path, folder: Path, dtype: str = "float32", **environment: str
) -> tuple[list[str], list[str]]:
    """The lines that a package says on standard output and standard error while it loads a model.

    Args:
        dtype: the type that the kernels are chosen for.
    """
    write(sources, folder / "tiny_llm")
    arguments = (folder, ROOT, checkpoint, WITH_ALL, WITHOUT_ROUNDING, dtype)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, OF_LEARNER: "1", "TINY_LLM_KERNELS": "own", **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines(), result.stderr.splitlines()


def with_edit(file: str, find: str, replace: str) -> dict[Path, str]:
    """The reference with one text replaced."""
    sources = read_reference()
    assert sources[Path(file)].count(find) == 1
    return {**sources, Path(file): sources[Path(file)].replace(find, replace)}


def test_all_kernels_are_used(checkpoint: Path, tmp_path: Path) -> None:
    assert run(read_reference(), checkpoint, tmp_path) == (FAST, [])


def test_kernels_turned_off_are_not_mentioned(checkpoint: Path, tmp_path: Path) -> None:
    assert run(read_reference(), checkpoint, tmp_path, TINY_LLM_KERNELS="off") == (TURNED_OFF, [])


@pytest.mark.skipif(DEVICE == "gpu", reason="on a GPU each number of rows may have a winner of its own")
def test_a_model_of_mlx_operations_and_one_of_the_fastest_compute_the_same(
    checkpoint: Path, tmp_path: Path
) -> None:
    of_mlx = ["mlx_matmul mlx_attention", "MlxNorm MlxRope mlx_mlp Qwen3MultiHeadAttention", "True True"]
    assert run(read_reference(), checkpoint, tmp_path / "mlx", TINY_LLM_KERNELS="mlx") == (of_mlx, [])
    output, notes = run(read_reference(), checkpoint, tmp_path / "race", TINY_LLM_KERNELS="race")
    assert output[2] == "True True"
    assert all("racing the kernels" in line for line in notes)


@pytest.mark.skipif(DEVICE == "gpu", reason="the kernel that is broken here is one of the CPU")
def test_where_a_kernel_is_wrong_the_others_race(checkpoint: Path, tmp_path: Path) -> None:
    file, find = "kernels/cpu/quantized_matmul_simd.cpp", "first = first * scale + bias;"
    sources = with_edit(file, find, "first = first * scale;")
    output, notes = run(sources, checkpoint, tmp_path, TINY_LLM_KERNELS="race")
    assert (output[0].split()[0] in ("None", "mlx_matmul"), output[2]) == (True, "True True")
    assert "quantized_matmul differs" in notes[0]


def test_kernels_not_written_yet_are_not_mentioned(checkpoint: Path, tmp_path: Path) -> None:
    days = load_course().days
    kernels = {(2, 3), (2, 5)}
    solved = {task.id for day in days for task in day.tasks if (day.week, day.day) not in kernels}
    assert run(render(solved), checkpoint, tmp_path) == (PLAIN, [])


def test_each_hole_costs_its_own_part_alone(checkpoint: Path, tmp_path: Path) -> None:
    solved = {task.id for day in load_course().days for task in day.tasks} - {"2.5.4"}
    expected = [FAST[0], PLAIN_PARTS[DEVICE], "True True"]
    assert run(render(solved), checkpoint, tmp_path) == (expected, [])


def gpu_source(name: str) -> str:
    return f"kernels/{TARGET.language}/{name}{SUFFIXES[TARGET.language]}"


def check_one_is_left_out(
    device: str, expected: list[str], words: Sequence[str], result: tuple[list[str], list[str]]
) -> None:
    """A kernel of this device is left out, with one line; one of another device is not missed here."""
    __tracebackhide__ = True
    if device != DEVICE:
        assert result == (FAST, [])
        return
    output, (line,) = result
    assert output == expected
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("device", "file", "find", "replace", "name", "expected"),
    [
        (
            "cpu",
            "kernels/cpu/quantized_matmul_simd.cpp",
            "first = first * scale + bias;",
            "first = first * scale;",
            "quantized_matmul",
            [f"None {ATTENTION}", PARTS, "True True"],
        ),
        (
            "cpu",
            "accelerated/integer_matmul.cpp",
            "return sums + grid.biases * x_sum;",
            "return sums - grid.biases * x_sum;",
            "integer_matmul",
            [f"quantized_matmul {ATTENTION}", PARTS, "True True"],
        ),
        (
            "cpu",
            "kernels/cpu/swiglu.cpp",
            "1.0f + exponential(-gate)",
            "1.0f + exponential(gate)",
            "swiglu",
            [FAST[0], "FusedNorm FusedRope Qwen3MLP fused_attention", "True True"],
        ),
        (
            "cpu",
            "accelerated/swiglu_halves.cpp",
            "*up = gate + size;",
            "*up = gate;",
            "swiglu",
            [FAST[0], "FusedNorm FusedRope Qwen3MLP fused_attention", "True True"],
        ),
        (
            "cpu",
            "accelerated/split_heads.cpp",
            "if (part == 2) continue;",
            "",
            "split_heads",
            [FAST[0], "FusedNorm FusedRope fused_mlp Qwen3MultiHeadAttention", "True True"],
        ),
        (
            "gpu",
            gpu_source("quantized_matvec"),
            "float(code_at(codes, i * bits, bits)) + bias;",
            "float(code_at(codes, i * bits, bits));",
            "quantized_matmul",
            [f"None {ATTENTION}", PARTS, "True True"],
        ),
        (
            "gpu",
            gpu_source("flash_decode"),
            "float(query[dim]) * scale",
            "float(query[dim])",
            "dispatch_attention",
            ["tiled_matmul scaled_dot_product_attention_grouped", PARTS, "True True"],
        ),
        (
            "gpu",
            f"accelerated/{TARGET.language}/tiled_matmul{SUFFIXES[TARGET.language]}",
            "T(scale * float(code) + bias)",
            "T(scale * float(code))",
            "tiled_matmul",
            [f"quantized_matmul {ATTENTION}", PARTS, "True True"],
        ),
        (
            "gpu",
            f"accelerated/{TARGET.language}/tiled_attention{SUFFIXES[TARGET.language]}",
            "total * shrink + added",
            "total + added",
            "tiled_attention",
            [f"{PRODUCT} dispatch_attention", PARTS, "True True"],
        ),
    ],
    ids=[
        "quantized_matmul",
        "integer_matmul",
        "swiglu",
        "swiglu_halves",
        "split_heads",
        "quantized_matvec on a GPU",
        "flash_decode on a GPU",
        "tiled_matmul on a GPU",
        "tiled_attention on a GPU",
    ],
)
def test_a_wrong_kernel_is_left_out_with_one_line(
    device: str,
    file: str,
    find: str,
    replace: str,
    name: str,
    expected: list[str],
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    dtype = "bfloat16" if name.startswith("tiled") else "float32"  # matrix units multiply 16 bits
    result = run(with_edit(file, find, replace), checkpoint, tmp_path, dtype)
    words = [f"{name} differs from MLX's operation"]
    check_one_is_left_out(device, expected, words, result)


@pytest.mark.parametrize(
    ("device", "file", "find", "expected"),
    [
        (
            "cpu",
            "kernels/cpu/rms_norm.cpp",
            "const float eps = numbers[0];",
            [FAST[0], "RMSNorm FusedRope fused_mlp fused_attention", "True True"],
        ),
        (
            "gpu",
            gpu_source("quantized_matvec"),
            "float bias = float(biases[quantization_group]);",
            [f"None {ATTENTION}", PARTS, "True True"],
        ),
    ],
    ids=["on the CPU", "on a GPU"],
)
def test_a_kernel_that_does_not_compile_is_left_out_with_one_line(
    device: str, file: str, find: str, expected: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    result = run(with_edit(file, find, find.removesuffix(";")), checkpoint, tmp_path)
    words = ["TINY_LLM_KERNELS=off", *([Path(file).name] if TARGET.device == "emulator" else [])]
    check_one_is_left_out(device, expected, words, result)


def test_a_part_that_raises_is_left_out_with_one_line(checkpoint: Path, tmp_path: Path) -> None:
    find = "attend = flash_attention_gpu if is_on_gpu else flash_attention_cpu"
    sources = with_edit("kernels/dispatch_attention.py", find, "attend = None")
    output, (line,) = run(sources, checkpoint, tmp_path)
    assert output == [f"{PRODUCT} scaled_dot_product_attention_grouped", FAST[1], "True True"]
    assert "dispatch_attention fails" in line
    assert "TypeError" in line


def test_parts_may_name_what_they_hold_as_they_like(checkpoint: Path, tmp_path: Path) -> None:
    names = {
        "model/mlp.py": ("self.gate", "self.up", "self.down", "self.dim"),
        "ops/norm.py": ("self.weight", "self.eps", "self.dim"),
        "ops/positional_encoding.py": (
            "self._cos",
            "self._sin",
            "self.dims",
            "self.seq_len",
            "self.traditional",
        ),
    }
    sources = read_reference()
    for file, attributes in names.items():
        for name in attributes:
            text = re.sub(rf"{re.escape(name)}\b", f"{name}_of_mine", sources[Path(file)])
            assert text != sources[Path(file)]
            sources[Path(file)] = text
    assert run(sources, checkpoint, tmp_path) == (FAST, [])


def test_an_impossible_number_of_threads_is_said_in_one_line(checkpoint: Path, tmp_path: Path) -> None:
    result = run(read_reference(), checkpoint, tmp_path, TINY_LLM_THREADS="many")
    check_one_is_left_out("cpu", PLAIN, ["TINY_LLM_THREADS is 'many'"], result)


def test_without_a_compiler_one_line_says_so(checkpoint: Path, tmp_path: Path) -> None:
    environment = {
        "CXX": "no-such-compiler",
        "TINY_LLM_CACHE": str(tmp_path / "cache"),
        "TINY_LLM_BLAS": "off",
    }
    result = run(read_reference(), checkpoint, tmp_path, **environment)
    needs_one = DEVICE if TARGET.device == "emulator" else "cpu"  # MLX itself compiles a GPU's kernels
    check_one_is_left_out(needs_one, UNCOMPILED, ["there is no C++ compiler here"], result)


def test_what_is_chosen_is_kept_for_each_device_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [best_operations()]
    with monkeypatch.context() as elsewhere:
        other = mx.gpu if mx.default_device() == mx.cpu else mx.cpu
        elsewhere.setattr(mx, "default_device", lambda: mx.Device(other))
        chosen.append(best_operations())
    with monkeypatch.context() as otherwise:
        otherwise.setenv("TINY_LLM_KERNELS", "off")
        chosen.append(best_operations())
    assert all(one != other for one, other in itertools.combinations(chosen, 2))
    assert best_operations() is chosen[0]
