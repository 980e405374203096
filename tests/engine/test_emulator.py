"""The emulator of GPU threads, by small kernels: those that are right, and those that break a rule."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.emulation import EmulatorError
from kernel_runtime.gpu_kernel import (
    GpuKernel,
    at_least_smallest,
    compiled,
    ensure_it_compiles,
    gpu_function,
)
from kernel_runtime.gpu_source import whole_source
from kernel_runtime.launch import BACKWARD, FORWARD, Language, Launch, Target
from kernel_runtime.native import BuildError
from tests.support.check import check_close, check_equal, normal
from tiny_llm.kernels.gpu_operations import (
    FLASH_ATTENTION,
    FLASH_DECODE,
    QUANTIZED_MATMUL,
    QUANTIZED_MATVEC,
)
from tiny_llm.kernels.paged_gpu import PAGED_ATTENTION, PAGED_DECODE

ORDERS = [FORWARD, BACKWARD, 2, 3, 4]
THREADS = 64
KERNELS = [QUANTIZED_MATVEC, QUANTIZED_MATMUL, FLASH_ATTENTION, FLASH_DECODE, PAGED_ATTENTION, PAGED_DECODE]

METAL = """#include <metal_stdlib>
using namespace metal;

template <typename T>
void probe(
    const device T* x, device T* out, int n, float factor, threadgroup float* tile,
    uint3 group, uint simd_group, uint lane) {
  int i = int(simd_group) * 32 + int(lane);
  int at = int(group.x) * 64 + i;
  BODY
}
"""
CUDA = """#include <cuda_pipeline.h>
#include <mma.h>

template <typename T>
__device__ void probe(const T* x, T* out, int n, float factor, float* tile) {
  int i = threadIdx.x;
  int at = blockIdx.x * blockDim.x + i;
  int lane = i % 32;
  BODY
}
"""
TEMPLATES: Mapping[Language, str] = {"metal": METAL, "cuda": CUDA}
FILES: Mapping[Language, str] = {"metal": "probe.metal", "cuda": "probe.cu"}
BARRIER: Mapping[Language, str] = {
    "metal": "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "cuda": "__syncthreads();",
}
LANGUAGES: list[Language] = ["metal", "cuda"]

FLOATS = (mx.float32, mx.float16, mx.bfloat16)


def make_probe(
    folder: Path, language: Language, body: str, types: tuple[mx.Dtype, ...] = FLOATS, size: int = 64
) -> GpuKernel:
    """A kernel with this body and a tile of this size; BARRIER in it stands for the language's own."""
    (folder / language).mkdir(exist_ok=True)
    text = TEMPLATES[language].replace("BODY", body.replace("BARRIER", BARRIER[language]))
    (folder / language / FILES[language]).write_text(text)
    return GpuKernel(
        "probe",
        inputs=("x",),
        output="out",
        templates={"T": types},
        integers=("n",),
        reals=("factor",),
        shared={"tile": f"{size}"},
        folder=folder,
    )


def run(
    kernel: GpuKernel,
    language: Language,
    order: int = FORWARD,
    x: mx.array | None = None,
    size: int = THREADS,
    groups: int = 1,
) -> mx.array:
    x = normal(size, seed=1) if x is None else x
    launch = Launch((x,), (size,), x.dtype, (groups, 1, 1), THREADS, {"T": x.dtype}, (size,), (1.25,))
    return kernel(Target(language, "emulator", order), launch)


REVERSE = "tile[i] = x[i]; BARRIER out[i] = tile[63 - i];"


# --- what is right ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_shared_memory_and_a_barrier_are_right_in_every_order(language: Language, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, REVERSE)
    expected = normal(THREADS, seed=1)[::-1]
    for order in ORDERS:
        check_close(run(kernel, language, order), expected, f"x reversed, order {order}", tolerance=0)


def test_the_order_of_the_threads_is_the_one_asked_for(tmp_path: Path) -> None:
    body = "static int turn; out[i] = turn++ % n;"
    kernel = make_probe(tmp_path, "metal", body)
    turns = {order: np.array(run(kernel, "metal", order)).tolist() for order in ORDERS}
    check_equal(turns[FORWARD], [float(i) for i in range(64)], "turns forward")
    check_equal(turns[BACKWARD], [float(63 - i) for i in range(64)], "turns backward")
    for order in ORDERS:
        check_equal(sorted(turns[order]), turns[FORWARD], f"turns of order {order}, sorted")
        check_equal(np.array(run(kernel, "metal", order)).tolist(), turns[order], f"order {order} once more")
    check_equal(len({tuple(order) for order in turns.values()}), len(ORDERS), "different orders")


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_of_a_simd_group_read_each_others_entries_after_an_operation(
    order: int, tmp_path: Path
) -> None:
    body = "tile[i] = x[i]; simdgroup_barrier(mem_flags::mem_threadgroup); out[i] = tile[i ^ DISTANCE];"
    kernel = make_probe(tmp_path, "metal", body.replace("DISTANCE", "1"))
    expected = normal(THREADS, seed=1).reshape(-1, 2)[:, ::-1].flatten()
    check_close(run(kernel, "metal", order), expected, "x with neighbours swapped", tolerance=0)
    kernel = make_probe(tmp_path, "metal", body.replace("DISTANCE", "32"))
    with pytest.raises(EmulatorError, match=r"writes tile\[\d+\] and thread \d+ reads it, and no barrier"):
        run(kernel, "metal", order)


SIMD_METAL = """
  float value = x[i], result = 0;
  if (n == 64) result = simd_sum(value) + 10 * simd_max(value) + 100 * simd_min(value);
  result += 1000 * simd_shuffle_xor(value, 5) + 2000 * simd_shuffle_down(value, 3);
  out[i] = result + 4000 * simd_broadcast(value, 7) + 8000 * simd_shuffle(value, 31 - lane);
"""
SIMD_CUDA = """
  unsigned all = 0xffffffff;
  float value = x[i], sum = value, low = value, high = value;
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(all, sum, step);
    low = min(low, __shfl_xor_sync(all, low, step));
    high = max(high, __shfl_xor_sync(all, high, step));
    __syncwarp();
  }
  float result = sum + 10 * high + 100 * low;
  result += 1000 * __shfl_xor_sync(all, value, 5) + 2000 * __shfl_down_sync(all, value, 3);
  out[i] = result + 4000 * __shfl_sync(all, value, 7) + 8000 * __shfl_sync(all, value, 31 - lane);
"""


@pytest.mark.parametrize("language", LANGUAGES)
def test_simd_operations(language: Language, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, SIMD_METAL if language == "metal" else SIMD_CUDA)
    expected = []
    for values in np.array(normal(THREADS, seed=1)).reshape(2, 32):
        lanes = np.arange(32)
        later = np.where(lanes + 3 < 32, lanes + 3, lanes)
        expected.append(
            values.sum()
            + 10 * values.max()
            + 100 * values.min()
            + 1000 * values[lanes ^ 5]
            + 2000 * values[later]
            + 4000 * values[7]
            + 8000 * values[31 - lanes]
        )
    for order in ORDERS:
        what = f"SIMD operations, order {order}"
        check_close(run(kernel, language, order), np.concatenate(expected), what)


def test_each_group_has_sums_of_its_own(tmp_path: Path) -> None:
    """The first lane that goes on adds up for all: not what the group before it added up."""
    kernel = make_probe(tmp_path, "metal", "out[at] = simd_sum(float(x[at]));")
    sums = normal(3 * THREADS, seed=1).reshape(-1, 32).sum(axis=1)
    for order in ORDERS:
        result = run(kernel, "metal", order, size=3 * THREADS, groups=3)
        check_close(result, mx.repeat(sums, 32), f"sums of 6 SIMD groups, order {order}")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_low_precision_rounds_as_mlx_does(language: Language, dtype: mx.Dtype, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, "out[at] = T(float(x[at]) * factor);")
    x = (normal(1024, seed=2) * mx.exp(3 * normal(1024, seed=3))).astype(dtype)
    x[:4] = mx.array([0.0, -mx.inf, mx.inf, 1e-7], dtype)
    expected = (x.astype(mx.float32) * 1.25).astype(dtype)
    check_close(run(kernel, language, x=x, size=1024, groups=16), expected, "x times 1.25", tolerance=0)


# --- mistakes that show -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_missing_barrier_is_an_error(language: Language, order: int, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, REVERSE.replace("BARRIER", ""))
    sentence = r"thread \d+ writes tile\[\d+\] and thread \d+ reads it, and no barrier comes between them\. "
    with pytest.raises(EmulatorError, match=sentence):
        run(kernel, language, order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_before_the_next_round_shows(order: int, tmp_path: Path) -> None:
    rounds = """
      float sum = 0;
      for (int k = 0; k < 3; k++) {
        tile[i] = x[i] * (k + 1);
        BARRIER
        sum += tile[(i + 17) % 64];
        SECOND
      }
      out[i] = sum;
    """
    expected = 6 * np.roll(np.array(normal(THREADS, seed=1)), -17)
    kernel = make_probe(tmp_path, "metal", rounds.replace("SECOND", "BARRIER"))
    check_close(run(kernel, "metal", order), expected, "with both barriers")
    kernel = make_probe(tmp_path, "metal", rounds.replace("SECOND", ""))
    with pytest.raises(EmulatorError, match="no barrier comes between them after the one in line 14"):
        run(kernel, "metal", order)


def test_two_threads_that_write_one_entry_give_another_result_in_another_order(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", "out[i / 2] = x[i]; out[32 + i / 2] = x[i];")
    results = {tuple(np.array(run(kernel, "metal", order)).tolist()) for order in ORDERS}
    check_equal(len(results), len(ORDERS), "different results in as many orders")


@pytest.mark.parametrize("order", ORDERS)
def test_a_race_in_an_addition_is_an_error(order: int, tmp_path: Path) -> None:
    body = "if (i == 0) tile[0] = 0; tile[0] += 1; BARRIER out[i] = tile[0];"
    kernel = make_probe(tmp_path, "metal", body)
    with pytest.raises(EmulatorError, match=r"writes tile\[0\] and thread \d+ reads it, and no barrier"):
        run(kernel, "metal", order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_barrier_that_some_threads_miss_is_an_error(language: Language, order: int, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, "if (i < 40) { BARRIER } out[i] = x[i];")
    with pytest.raises(EmulatorError) as error:
        run(kernel, language, order)
    name = "threadgroup_barrier" if language == "metal" else "__syncthreads"
    sentence = (
        f"{FILES[language]}: group (0, 0, 0): all threads must reach the same operations, "
        f"but thread 39 is at {name} and thread 40 at its end"
    )
    check_equal(str(error.value), sentence, "error")


@pytest.mark.parametrize("order", ORDERS)
def test_a_simd_operation_that_some_lanes_miss_is_an_error(order: int, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", "out[i] = 0; if (i != 34) out[i] = simd_sum(float(x[i]));")
    with pytest.raises(EmulatorError, match="thread 33 is at simd_sum and thread 34 at its end"):
        run(kernel, "metal", order)


def test_different_simd_operations_side_by_side_are_an_error(tmp_path: Path) -> None:
    body = "float v = x[i]; out[i] = i == 3 ? simd_max(v) : simd_sum(v);"
    with pytest.raises(EmulatorError, match="thread 2 is at simd_sum and thread 3 at simd_max"):
        run(make_probe(tmp_path, "metal", body), "metal")


def test_a_mask_of_some_lanes_and_a_lane_that_is_not_there_are_errors(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "cuda", "out[i] = __shfl_sync(0xffff, float(x[i]), 0);")
    with pytest.raises(EmulatorError, match="__shfl_sync needs the mask of all lanes"):
        run(kernel, "cuda")
    kernel = make_probe(tmp_path, "metal", "out[i] = simd_broadcast(float(x[i]), i);")
    with pytest.raises(EmulatorError, match="thread 32 asks simd_broadcast for lane 32"):
        run(kernel, "metal")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("out[i] = x[i + 1];", "thread 63 reads or writes behind the end of x"),
        ("out[i] = x[i]; out[i + 5] = 0;", "reads or writes behind the end of out"),
        ("out[i] = tile[i + n];", "reads or writes behind the end of tile"),
        ("out[i] = x[i - 20000];", "reads or writes before the beginning of x"),
        ("out[i] = x[i + 100000000000L];", "reads or writes far outside its buffers"),
        ("out[i] = x[i]; out[i - 1] = x[i];", "a thread writes before the beginning of out"),
    ],
)
def test_an_access_outside_a_buffer_is_an_error(body: str, sentence: str, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", body)
    for order in ORDERS:
        with pytest.raises(EmulatorError, match=sentence):
            run(kernel, "metal", order)
    healthy = make_probe(tmp_path, "metal", REVERSE)
    check_equal(
        run(healthy, "metal").tolist(), normal(THREADS, seed=1)[::-1].tolist(), "a run after an error"
    )


def test_a_loop_without_an_end_is_an_error(tmp_path: Path) -> None:
    body = "BARRIER out[i] = x[i]; for (volatile int k = 0; k < n && i == 37;) out[i] = x[k];"
    with pytest.raises(EmulatorError, match=r"group \(0, 0, 0\): thread 37 runs on and on: a loop in it"):
        run(make_probe(tmp_path, "metal", body), "metal")


def test_a_read_just_before_a_buffer_gives_nan(tmp_path: Path) -> None:
    result = np.array(run(make_probe(tmp_path, "metal", "out[i] = x[i - 1];"), "metal"))
    check_equal(np.flatnonzero(np.isnan(result)).tolist(), [0], "entries that are nan")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_tail_that_is_not_handled_is_an_error(language: Language, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, language, "out[at] = x[at];")
    check_close(
        run(kernel, language, size=128, groups=2), normal(128, seed=1), "two whole groups", tolerance=0
    )
    with pytest.raises(
        EmulatorError, match=r"group \(1, 0, 0\): thread 37 reads or writes behind the end of x"
    ):
        run(kernel, language, size=101, groups=2)
    kernel = make_probe(tmp_path, language, "if (at < n) out[at] = x[at];")
    check_close(run(kernel, language, size=101, groups=2), normal(101, seed=1), "with a tail", tolerance=0)


@pytest.mark.parametrize("order", ORDERS)
def test_an_entry_that_nobody_writes_is_an_error(order: int, tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", "if (i != 5) out[i] = x[i];")
    with pytest.raises(EmulatorError, match=r"^probe.metal: entry 5 of out is not written$"):
        run(kernel, "metal", order)


def test_shared_memory_does_not_last_from_group_to_group(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", "if (at < 64) tile[i] = x[i]; BARRIER out[at] = tile[i];")
    result = np.array(run(kernel, "metal", size=128, groups=2))
    check_equal(np.isnan(result).tolist(), [False] * 64 + [True] * 64, "which entries are nan")


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_source_that_does_not_compile_is_a_sentence_with_file_and_line(
    language: Language, tmp_path: Path
) -> None:
    kernel = make_probe(tmp_path, language, "out[i] = y;")
    with pytest.raises(BuildError) as error:
        run(kernel, language)
    pattern = rf"the compiler refused: {FILES[language]}:\d+:\d+: error: .*y.*"
    assert re.fullmatch(pattern, str(error.value)), error.value


def test_a_hole_says_what_is_not_written_yet(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", 'NOT_WRITTEN_YET("week 9: probe is not written yet");')
    with pytest.raises(NotImplementedError, match=r"^week 9: probe is not written yet$"):
        run(kernel, "metal")


def test_launches_that_no_gpu_runs() -> None:
    x = normal(64, seed=1)
    with pytest.raises(ValueError, match=r"multiple of 32.*33"):
        Launch((x,), (64,), mx.float32, (1, 1, 1), 33, {})
    with pytest.raises(ValueError, match=r"at most 1024.*2048"):
        Launch((x,), (64,), mx.float32, (1, 1, 1), 2048, {})
    with pytest.raises(ValueError, match=r"float32, float16 or bfloat16.*int32"):
        Launch((x,), (64,), mx.int32, (1, 1, 1), 64, {})
    with pytest.raises(ValueError, match="empty"):
        Launch((x[:0],), (64,), mx.float32, (1, 1, 1), 64, {})
    many = 2**16, 2**15  # more entries than an int counts
    for inputs, shape in (((x,), many), ((mx.broadcast_to(x[:1], many),), (64,))):
        with pytest.raises(ValueError, match="counts them in an int"):
            Launch(inputs, shape, mx.float32, (1, 1, 1), 64, {})


def test_launches_that_do_not_fit_the_kernel(tmp_path: Path) -> None:
    kernel = make_probe(tmp_path, "metal", REVERSE)
    x, target = normal(64, seed=1), Target("metal", "emulator")
    grid = ((1, 1, 1), 64)
    with pytest.raises(ValueError, match="probe takes 1 inputs, got 2"):
        kernel(target, Launch((x, x), (64,), mx.float32, *grid, {"T": mx.float32}, (64,), (1.0,)))
    with pytest.raises(ValueError, match="probe takes 1 integers, got 0"):
        kernel(target, Launch((x,), (64,), mx.float32, *grid, {"T": mx.float32}, (), (1.0,)))
    with pytest.raises(ValueError, match=r"probe has no T = mlx\.core\.int32"):
        kernel(target, Launch((x,), (64,), mx.float32, *grid, {"T": mx.int32}, (64,), (1.0,)))


# --- the real languages -------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing: Language = "cuda" if mx.metal.is_available() else "metal"
    kernel = make_probe(tmp_path, missing, REVERSE)
    launch = Launch((normal(64, seed=1),), (64,), mx.float32, (1, 1, 1), 64, {"T": mx.float32}, (64,), (1.0,))
    with pytest.raises(BuildError, match=f"MLX has no {missing} GPU here"):
        kernel(Target(missing), launch)


def test_the_kernel_around_the_function() -> None:
    check_equal(
        QUANTIZED_MATMUL.body("metal"),
        "alignas(16) threadgroup float x_tile[1056];\n"
        "alignas(16) threadgroup float weight_tile[1056];\n"
        "::quantized_matmul<T, bits, group_size>(x, weights, scales, biases, out, integers[0], integers[1], "
        "integers[2], x_tile, weight_tile, threadgroup_position_in_grid, simdgroup_index_in_threadgroup, "
        "thread_index_in_simdgroup);",
        "body in Metal",
    )
    check_equal(
        FLASH_DECODE.body("cuda").splitlines()[0],
        "alignas(32) __shared__ float maxima[8];",
        "first line in CUDA",
    )


def test_mlx_takes_the_metal_sources() -> None:
    for kernel in KERNELS:
        assert callable(gpu_function(kernel, "metal", whole_source(kernel.file("metal"))))


def test_a_small_input_grows_to_what_metal_calls_device_memory() -> None:
    check_equal(at_least_smallest(mx.array([[3.0], [4.0]])).tolist(), [3, 4, 0, 0, 0, 0, 0, 0], "two entries")
    check_equal(at_least_smallest(normal(3, 3, seed=1)).shape, (3, 3), "shape of nine entries")


@pytest.mark.parametrize("language", ["metal", "cuda"])
def test_mlx_gets_a_source_in_ascii(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX hands Metal's compiler nothing at all if a comment holds an umlaut."""
    got: dict[str, Any] = {}
    monkeypatch.setattr(mx.fast, f"{language}_kernel", lambda **named: got.update(named))
    kernel = replace(QUANTIZED_MATVEC)
    gpu_function(kernel, language, "// Zeile für Zeile: ½ schön\nint x;\n")
    assert all(str(value).isascii() for value in got.values())
    assert got["header"].splitlines() == ["// Zeile f?r Zeile: ? sch?n", "int x;"]


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (ValueError("[eval] Attempting to eval an array during function transformations like compile"), None),
        (ValueError("[cuda_kernel] no such template argument"), "no such template argument"),
        (
            RuntimeError("Failed to compile\nkernel.metal:3: error: no such name\n"),
            r":3: error: no such name",
        ),
    ],
    ids=["traced", "value", "compiler"],
)
def test_only_inside_mx_compile_may_a_kernel_stay_untried(
    error: Exception, refusal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(outputs: object) -> None:
        raise error

    monkeypatch.setattr(mx, "eval", fail)
    function: Any = lambda **named: []  # noqa: E731
    with pytest.raises(BuildError, match=refusal) if refusal else nullcontext():
        ensure_it_compiles(function, (), [])
    assert (function, ()) not in compiled
