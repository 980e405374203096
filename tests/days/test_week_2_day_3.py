"""Week 2 day 3: the quantized matmul as a kernel."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import process_time

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.launch import BACKWARD, FORWARD, Language, Launch, Target
from tests.support.batching import peak_bytes
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import VARIANTS, build, save
from tests.support.cpu_kernels import (
    check_threads,
    compiled_for,
    on_every_target,
    poison,
    spread,
    threads,
    use_device,
)
from tests.support.fences import FencedKernel
from tests.support.oracles import LOW_PRECISION, exact
from tests.support.precision import check_rounded_once
from tests.support.quantized import (
    Codes,
    Grids,
    expanded,
    expanding_mistakes,
    grids_of,
    kernel_mistakes,
    packed_by_mlx,
    product_mistakes,
    random_words,
)
from tiny_llm import QuantizedWeights
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels import quantized_matmul as dispatch
from tiny_llm.kernels.gpu_operations import quantized_matmul_gpu
from tiny_llm.kernels.quantized_matmul import (
    dequantize,
    multiply_simd,
    multiply_simple,
    quantized_matmul,
    quantized_matmul_cpu,
)
from tiny_llm.model.loader import load_model
from tiny_llm.model.operations import Operations

ORDERS = [FORWARD, BACKWARD, *range(2, 7)]
LAYOUTS = [(bits, group_size) for bits in (4, 8) for group_size in (32, 64, 128)]
FEW_ROWS = [(1, 4, 128), (1, 7, 256), (3, 5, 384), (7, 13, 640), (8, 2, 1152)]
MANY_ROWS = [(9, 3, 128), (32, 32, 128), (33, 31, 256), (37, 71, 384), (64, 65, 128)]

every_layout = pytest.mark.parametrize(("bits", "group_size"), LAYOUTS)
every_precision = pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
few_rows = pytest.mark.parametrize(("M", "N", "K"), FEW_ROWS)
many_rows = pytest.mark.parametrize(("M", "N", "K"), MANY_ROWS)
need_metal = pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU (Metal)")
need_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs an NVIDIA GPU (CUDA)")


def make_weights(
    N: int, K: int, bits: int, group_size: int, dtype: mx.Dtype = mx.float32, seed: int = 1
) -> QuantizedWeights:
    """Codes, scales and biases drawn apart from each other, the product's terms about as large as 1."""
    scales, biases = normal(2, N, K // group_size, seed=seed + 1)
    return QuantizedWeights(
        random_words(N, K * bits // 32, seed=seed),
        (scales / 2 ** (bits - 1)).astype(dtype),
        biases.astype(dtype),
        group_size,
        bits,
    )


def grids(weights: QuantizedWeights) -> Grids:
    return grids_of(weights.weight, weights.scales, weights.biases, weights.group_size, weights.bits)


def codes_in_reverse(codes: Codes, bits: int) -> Codes:
    return codes.reshape(*codes.shape[:-1], -1, 32 // bits)[..., ::-1].reshape(codes.shape)


def check_product(
    target: Target,
    shape: tuple[int, int, int],
    bits: int = 4,
    group_size: int = 64,
    dtype: mx.Dtype = mx.float32,
    tolerance: float = 1e-5,
) -> None:
    """Compare the product on a target with that in numpy and float64."""
    __tracebackhide__ = True
    M, N, K = shape
    x, weights = normal(M, K, seed=3, dtype=dtype), make_weights(N, K, bits, group_size, dtype)
    parts = grids(weights)
    lanes = np.arange(K) * bits // 32 % 32  # whose words they are
    mistakes = {
        **product_mistakes(exact(x), parts),
        "the product with the codes of each word in reverse: the first lies in the lowest bits": lambda: (
            exact(x) @ expanded((codes_in_reverse(parts[0], bits), *parts[1:])).T
        ),
        "the product of half the lanes": lambda: (exact(x) * (lanes < 16)) @ expanded(parts).T,
        "the product of lane 0 alone": lambda: (exact(x) * (lanes == 0)) @ expanded(parts).T,
        "the product with the row before": partial(np.roll, exact(x) @ expanded(parts).T, 1, axis=0),
    }
    check_close(
        quantized_matmul_gpu(x, weights, target),
        exact(x) @ expanded(parts).T,
        f"[{M}, {K}] times [{N}, {K}] of {bits} bits, groups of {group_size}, order {target.order}",
        tolerance,
        mistakes,
    )


def check_orders(language: Language, shapes: Sequence[tuple[int, int, int]]) -> None:
    """In every order of the threads the result must be the same to the last bit."""
    __tracebackhide__ = True
    for M, N, K in shapes:
        x, weights = normal(M, K, seed=3), make_weights(N, K, 4, 64)
        expected = exact(x) @ expanded(grids(weights)).T
        first = quantized_matmul_gpu(x, weights, Target(language, "emulator", FORWARD))
        for order in ORDERS:
            what = f"[{M}, {K}] times [{N}, {K}], order {order} of the threads"
            result = quantized_matmul_gpu(x, weights, Target(language, "emulator", order))
            check_close(result, expected, what)
            check_close(result, first, f"{what}, against order {FORWARD}", tolerance=0)


def check_random_shapes(target: Target, seed: int, count: int = 12) -> None:
    """Shapes, layouts, types and orders that nobody chose."""
    __tracebackhide__ = True
    random = np.random.default_rng(seed)
    types = [(mx.float32, 1e-5), *(parameter.values for parameter in LOW_PRECISION)]
    for _ in range(count):
        bits, group_size = LAYOUTS[random.integers(len(LAYOUTS))]
        M = int(random.integers(1, 12) if random.integers(2) else random.integers(9, 70))
        N, K = int(random.integers(1, 70)), group_size * int(random.integers(1, 5))
        dtype, tolerance = types[random.integers(3)]
        order = int(random.integers(50))
        place = Target(target.language, target.device, order)
        check_product(place, (M, N, K), bits, group_size, dtype, tolerance)


def check_one_rounding(target: Target) -> None:
    """Few rows and many, in a short type, whose sums, weights and products are float32."""
    __tracebackhide__ = True
    for (dtype, _), M, bits in itertools.product((p.values for p in LOW_PRECISION), (8, 33), (4, 8)):
        x, weights = normal(M, 384, seed=3, dtype=dtype), make_weights(23, 384, bits, 64, dtype)
        expected = exact(x) @ expanded(grids(weights)).T
        what = f"product of {M} rows in {dtype} with weights of {bits} bits"
        check_rounded_once(quantized_matmul_gpu(x, weights, target), expected, what)


def check_sums(target: Target, M: int) -> None:
    """16384 terms that are all positive: in bfloat16 a sum of 256 of them grows no more."""
    __tracebackhide__ = True
    K, N = 16384, 3
    x, weights = mx.abs(normal(M, K, seed=5, dtype=mx.bfloat16)), make_weights(N, K, 4, 64, mx.bfloat16)
    weights = QuantizedWeights(weights.weight, mx.abs(weights.scales), mx.abs(weights.biases), 64, 4)
    check_close(
        quantized_matmul_gpu(x, weights, target),
        exact(x) @ expanded(grids(weights)).T,
        f"sums of {K} terms in bfloat16",
        tolerance=4e-3,
        mistakes=product_mistakes(exact(x), grids(weights)),
    )


def check_eights_of_rows(target: Target) -> None:
    """quantized_matvec itself, with more rows than a group has: group.y counts eights of them."""
    __tracebackhide__ = True
    M, N, K = 11, 5, 256
    x, weights = normal(M, K, seed=3), make_weights(N, K, 4, 64)
    launch = Launch(
        (x, weights.weight, weights.scales, weights.biases),
        (M, N),
        mx.float32,
        num_groups=(2, 2, 1),  # fours of columns, eights of rows
        num_threads=128,
        template={"T": mx.float32, "bits": 4, "group_size": 64},
        integers=(M, N, K),
    )
    actual = gpu_operations.QUANTIZED_MATVEC(target, launch)
    check_close(actual, exact(x) @ expanded(grids(weights)).T, f"product of {M} rows by quantized_matvec")


def check_other_types(target: Target) -> None:
    """x in one type and the scales in another; leading axes of any number."""
    __tracebackhide__ = True
    for M in (2, 9):
        x, weights = normal(2, M, 128, seed=3), make_weights(5, 128, 8, 32, mx.float16)
        result = quantized_matmul_gpu(x, weights, target)
        check_close(result, exact(x) @ expanded(grids(weights)).T, "float32 x and float16 scales")
        row = quantized_matmul_gpu(x[0, 0], weights, target)
        check_close(row, exact(x)[0, 0] @ expanded(grids(weights)).T, "one row without an axis")


# --- CPU: tasks 1 and 2 ------------------------------------------------------------------------------------

Multiply = Callable[[mx.array, QuantizedWeights], mx.array]

CPU_SHAPES = [(1, 1, 128), (2, 7, 128), (3, 131, 256), (5, 53, 384), (1, 257, 1152), (11, 17, 640)]
cpu_shapes = pytest.mark.parametrize(("M", "N", "K"), CPU_SHAPES)


def check_cpu_product(
    multiply: Multiply, shape: tuple[int, int, int], bits: int = 4, group_size: int = 64, what: str = ""
) -> None:
    """Compare a product of [M, K] on the CPU with that in numpy and float64."""
    __tracebackhide__ = True
    M, N, K = shape
    x, weights = normal(M, K, seed=3), make_weights(N, K, bits, group_size)
    poison(M, N)
    check_close(
        multiply(x, weights),
        exact(x) @ expanded(grids(weights)).T,
        what or f"[{M}, {K}] times [{N}, {K}] of {bits} bits, groups of {group_size}",
        mistakes=kernel_mistakes(exact(x), grids(weights), bits),
    )


def check_any_number_of_rows(multiply: Multiply) -> None:
    """More rows than are multiplied at a time, and what is left over of them; x of any number of axes."""
    __tracebackhide__ = True
    for leading in ((), (2, 3)):
        check_leading_axes(multiply, leading)
    for M in (*range(1, 18), 71):
        check_cpu_product(multiply, (M, 13, 256), bits=4 if M % 2 else 8)


def check_product_by_threads(multiply: Multiply) -> None:
    """Who computes a column must not change it, and the threads must not meet."""
    __tracebackhide__ = True
    x, weights = normal(16, 1024, seed=3), make_weights(2048, 1024, 4, 64)
    check_threads(lambda: multiply(x, weights), "product of 16 rows with [2048, 1024]")
    with threads(4):
        check_cpu_product(multiply, (3, 331, 256), what="product with 4 threads")


def check_long_rows(multiply: Multiply) -> None:
    """A buffer that a thread keeps, static or thread_local, is too short for the second row."""
    __tracebackhide__ = True
    for K in (128, 2**18):
        x, weights = mx.ones((1, K)), make_weights(32, K, 4, 64)
        with threads(4):
            check_close(
                multiply(x, weights) / K**0.5,
                expanded(grids(weights)).sum(axis=1)[None] / K**0.5,
                f"product of rows of {K}, divided by its root",
                tolerance=1e-3,
            )


def check_fenced(multiply: Multiply, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing behind an input is read, and nothing behind an output is written."""
    __tracebackhide__ = True
    for name in names:
        monkeypatch.setattr(dispatch, name, FencedKernel(getattr(dispatch, name)))
    for bits, group_size in ((4, 32), (8, 64)):
        for M, N in ((1, 1), (3, 17), (9, 5)):
            check_cpu_product(multiply, (M, N, 128), bits, group_size)


def check_strided(multiply: Multiply) -> None:
    """Arrays that do not lie in memory as they are read."""
    __tracebackhide__ = True
    x, weights = normal(3, 256, seed=3), make_weights(13, 256, 4, 64)
    parts = (weights.weight, weights.scales, weights.biases)
    strided = QuantizedWeights(*map(spread, parts), weights.group_size, weights.bits)
    columns = mx.array(np.ascontiguousarray(np.array(x).T)).T
    expected = exact(x) @ expanded(grids(weights)).T
    check_close(multiply(spread(x), weights), expected, "product of every other entry of a larger x")
    check_close(multiply(columns, weights), expected, "product of an x that lies column by column")
    check_close(multiply(x, strided), expected, "product with slices of larger weights")


# --- task 1: plain loops -----------------------------------------------------------------------------------


@cpu_shapes
def test_task_1_product(M: int, N: int, K: int) -> None:
    check_cpu_product(multiply_simple, (M, N, K))


@every_layout
def test_task_1_every_layout(bits: int, group_size: int) -> None:
    check_cpu_product(multiply_simple, (3, 11, 384), bits, group_size)


def test_task_1_any_number_of_rows() -> None:
    check_any_number_of_rows(multiply_simple)


def test_task_1_weights_that_mlx_packed() -> None:
    check_against_mlx(multiply_simple)


def test_task_1_threads_do_not_matter() -> None:
    check_product_by_threads(multiply_simple)


def test_task_1_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fenced(multiply_simple, ["SIMPLE"], monkeypatch)


def test_task_1_long_rows_after_short_ones() -> None:
    check_long_rows(multiply_simple)


def test_task_1_arrays_that_are_not_contiguous() -> None:
    check_strided(multiply_simple)


@on_every_target
def test_task_1_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SIMPLE", compiled_for(target, dispatch.SIMPLE, monkeypatch))
    for bits in (4, 8):
        check_cpu_product(multiply_simple, (3, 11, 384), bits, what=f"product of {bits} bits on {target}")


# --- task 2: vectors ---------------------------------------------------------------------------------------


@cpu_shapes
def test_task_2_product(M: int, N: int, K: int) -> None:
    check_cpu_product(multiply_simd, (M, N, K))


@every_layout
def test_task_2_every_layout(bits: int, group_size: int) -> None:
    check_cpu_product(multiply_simd, (3, 11, 384), bits, group_size)


def test_task_2_any_number_of_rows() -> None:
    check_any_number_of_rows(multiply_simd)


def test_task_2_weights_that_mlx_packed() -> None:
    check_against_mlx(multiply_simd)


def test_task_2_threads_do_not_matter() -> None:
    check_product_by_threads(multiply_simd)


def test_task_2_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fenced(multiply_simd, ["SIMD"], monkeypatch)


def test_task_2_long_rows_after_short_ones() -> None:
    check_long_rows(multiply_simd)


def test_task_2_arrays_that_are_not_contiguous() -> None:
    check_strided(multiply_simd)


@on_every_target
def test_task_2_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SIMD", compiled_for(target, dispatch.SIMD, monkeypatch))
    for bits in (4, 8):
        for M in (1, 9):
            what = f"product of {M} rows and {bits} bits on {target}"
            check_cpu_product(multiply_simd, (M, 11, 384), bits, what=what)


# --- task 3: many rows -------------------------------------------------------------------------------------

FEW, MANY = (1, 5, 8, 17, 64), (65, 83, 131)


@every_layout
def test_task_3_weights_expanded(bits: int, group_size: int) -> None:
    weights = make_weights(37, 1152, bits, group_size)
    poison(37, 1152)
    check_expanded(dequantize(weights), weights, f"weights of {bits} bits, groups of {group_size}")


def test_task_3_weights_expanded_by_any_number_of_threads() -> None:
    weights = make_weights(331, 256, 4, 32)
    for count in (1, 4):
        with threads(count):
            poison(331, 256)
            check_expanded(dequantize(weights), weights, f"weights expanded by {count} threads")


def seconds_to_expand(N: int) -> float:
    """What N rows of 1024 weights cost all threads together, in the cheapest of some runs."""
    weights, runs = make_weights(N, 1024, 4, 64), []
    mx.eval(dequantize(weights))
    for _ in range(5):
        start = process_time()
        mx.eval(dequantize(weights))
        runs.append(process_time() - start)
    return min(runs)


def test_task_3_each_part_of_the_weights_is_expanded_once() -> None:
    few, many = seconds_to_expand(128), seconds_to_expand(2048)
    if many > 48 * few:
        fail(
            f"16 times as many weights took {many / few:.0f} times as long to expand.",
            "parallel_for calls the body once for each part: expand the groups from first to last alone.",
        )


def test_task_3_the_threads_that_expand_do_not_meet() -> None:
    weights = make_weights(2048, 1024, 4, 64)
    check_threads(lambda: dequantize(weights), "weights [2048, 1024], expanded")


def test_task_3_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "DEQUANTIZE", FencedKernel(dispatch.DEQUANTIZE))
    for bits, group_size in LAYOUTS:
        weights = make_weights(3, 384, bits, group_size)
        check_expanded(dequantize(weights), weights, f"weights of {bits} bits, groups of {group_size}")


@on_every_target
@pytest.mark.parametrize("bits", [4, 8])
def test_task_3_other_processors(target: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights(37, 384, bits, 64)
    monkeypatch.setattr(dispatch, "DEQUANTIZE", compiled_for(target, dispatch.DEQUANTIZE, monkeypatch))
    check_expanded(dequantize(weights), weights, f"weights of {bits} bits on {target}")


@pytest.mark.parametrize("M", [*FEW, *MANY])
def test_task_3_product_of_few_and_many_rows(M: int) -> None:
    for bits in (4, 8):
        check_cpu_product(quantized_matmul_cpu, (M, 13, 256), bits)


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (3, 1, 2), (5, 17)], ids=str)
def test_task_3_any_leading_axes(leading: tuple[int, ...]) -> None:
    check_leading_axes(quantized_matmul_cpu, leading)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("M", [3, 71])
def test_task_3_sums_are_float32(M: int, dtype: mx.Dtype) -> None:
    check_type(quantized_matmul_cpu, M, dtype)


def test_task_3_few_rows_do_not_expand_the_weights() -> None:
    check_packed_weights_stay_packed(quantized_matmul_cpu)


def test_task_3_up_to_64_rows_do_not_expand_the_weights() -> None:
    check_packed_weights_stay_packed(quantized_matmul_cpu, 64)


def test_task_3_many_rows_expand_the_weights() -> None:
    x, weights = normal(40, 5, 512, seed=3), make_weights(1031, 512, 4, 64)
    mx.eval(x, weights.weight, weights.scales, weights.biases)
    peak, plain = peak_bytes(lambda: mx.eval(quantized_matmul_cpu(x, weights))), 4 * 1031 * 512
    assert peak >= plain, (
        f"{peak} bytes at once for 200 rows: the weights in float32 are {plain}, so they were not expanded "
        "for the BLAS"
    )


def check_expanded(actual: mx.array, weights: QuantizedWeights, what: str) -> None:
    """Compare plain weights with those that the codes stand for."""
    __tracebackhide__ = True
    codes, scales, biases = parts = grids(weights)
    swapped = codes.reshape(-1, 2)[:, ::-1].reshape(codes.shape)
    mistakes = {
        "the weights with each pair of a byte swapped: the first lies in its lower half": lambda: expanded(
            (swapped, scales, biases)
        ),
        **expanding_mistakes(parts),
    }
    check_close(actual, expanded(parts), what, 1e-6, mistakes)


def check_against_mlx(multiply: Multiply) -> None:
    """Weights, scales and biases as they come out of MLX."""
    __tracebackhide__ = True
    for bits, group_size in LAYOUTS:
        weight, scales, biases = packed_by_mlx(29, 256, group_size, bits)
        x = normal(2, 256, seed=3)
        with mx.stream(mx.cpu):
            expected = mx.quantized_matmul(x, weight, scales, biases, group_size=group_size, bits=bits)
        actual = multiply(x, QuantizedWeights(weight, scales, biases, group_size, bits))
        check_close(actual, expected, f"product of {bits} bits, groups of {group_size}, against MLX's")


def check_leading_axes(multiply: Multiply, leading: tuple[int, ...]) -> None:
    """x of any number of axes."""
    __tracebackhide__ = True
    x, weights = normal(*leading, 256, seed=3), make_weights(13, 256, 4, 64)
    expected = exact(x) @ expanded(grids(weights)).T
    check_close(multiply(x, weights), expected, f"product of x {x.shape}")


def check_type(multiply: Multiply, M: int, dtype: mx.Dtype) -> None:
    """In the type that x and the scales have together; the sums in float32, rounded once."""
    __tracebackhide__ = True
    rounding = {mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    for x_type, scale_type in ((dtype, dtype), (dtype, mx.float32), (mx.float32, dtype)):
        x, weights = normal(M, 640, seed=3, dtype=x_type), make_weights(13, 640, 4, 64, scale_type)
        what = f"product of {x_type} rows and scales in {scale_type}"
        actual = multiply(x, weights)
        check_equal(actual.dtype, dtype if x_type == scale_type else mx.float32, f"type of the {what}")
        expected = exact(x) @ expanded(grids(weights)).T
        check_close(actual, expected, what, rounding if x_type == scale_type else 1e-5)


def check_packed_weights_stay_packed(multiply: Multiply, M: int = 3) -> None:
    """Few rows take far less memory than the plain weights would."""
    __tracebackhide__ = True
    for bits in (4, 8):
        x, weights = normal(1, M, 1024, seed=3), make_weights(1031, 1024, bits, 64)
        mx.eval(x, weights.weight, weights.scales, weights.biases)
        peak, plain = peak_bytes(lambda x=x, w=weights: mx.eval(multiply(x, w))), 4 * 1031 * 1024
        assert peak <= plain / 8, (
            f"{peak} bytes at once for {M} rows and {bits} bits: the weights in float32 would be {plain}"
        )


# --- task 4: Metal -----------------------------------------------------------------------------------------

METAL = Target("metal", "emulator")


@few_rows
def test_task_4_few_rows(M: int, N: int, K: int) -> None:
    check_product(METAL, (M, N, K))


@many_rows
def test_task_4_many_rows(M: int, N: int, K: int) -> None:
    check_product(METAL, (M, N, K))


@every_layout
def test_task_4_every_layout(bits: int, group_size: int) -> None:
    check_product(METAL, (5, 11, 384), bits, group_size)
    check_product(METAL, (35, 11, 384), bits, group_size)


@every_precision
def test_task_4_low_precision(dtype: mx.Dtype, tolerance: float) -> None:
    check_product(METAL, (3, 11, 384), dtype=dtype, tolerance=tolerance)
    check_product(METAL, (40, 11, 384), dtype=dtype, tolerance=tolerance)


def test_task_4_a_short_result_is_rounded_once() -> None:
    check_one_rounding(METAL)


def test_task_4_eights_of_rows() -> None:
    check_eights_of_rows(METAL)


def test_task_4_sums_are_float32() -> None:
    check_sums(METAL, 2)
    check_sums(METAL, 9)


def test_task_4_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("metal", [(3, 6, 320), (34, 36, 192)])


def test_task_4_random_shapes() -> None:
    check_random_shapes(METAL, seed=4)


def test_task_4_types_and_axes() -> None:
    check_other_types(METAL)


def test_task_4_what_does_not_fit_is_refused() -> None:
    quantized_matmul_gpu(normal(1, 128, seed=1), make_weights(4, 128, 4, 64), METAL)
    with check_value_error(K=128, x=(1, 64)):
        quantized_matmul_gpu(normal(1, 64, seed=1), make_weights(4, 128, 4, 64), METAL)
    with check_value_error(bits=2):
        quantized_matmul_gpu(normal(1, 128, seed=1), make_weights(4, 128, 2, 64), METAL)


@need_metal
def test_task_4_on_the_gpu() -> None:
    check_random_shapes(Target("metal"), seed=5, count=40)
    check_sums(Target("metal"), 2)
    check_sums(Target("metal"), 9)
    check_other_types(Target("metal"))


# --- task 5: CUDA ------------------------------------------------------------------------------------------

CUDA = Target("cuda", "emulator")


@few_rows
def test_task_5_few_rows(M: int, N: int, K: int) -> None:
    check_product(CUDA, (M, N, K))


@many_rows
def test_task_5_many_rows(M: int, N: int, K: int) -> None:
    check_product(CUDA, (M, N, K))


@every_layout
def test_task_5_every_layout(bits: int, group_size: int) -> None:
    check_product(CUDA, (5, 11, 384), bits, group_size)
    check_product(CUDA, (35, 11, 384), bits, group_size)


@every_precision
def test_task_5_low_precision(dtype: mx.Dtype, tolerance: float) -> None:
    check_product(CUDA, (3, 11, 384), dtype=dtype, tolerance=tolerance)
    check_product(CUDA, (40, 11, 384), dtype=dtype, tolerance=tolerance)


def test_task_5_a_short_result_is_rounded_once() -> None:
    check_one_rounding(CUDA)


def test_task_5_eights_of_rows() -> None:
    check_eights_of_rows(CUDA)


def test_task_5_sums_are_float32() -> None:
    check_sums(CUDA, 2)
    check_sums(CUDA, 9)


def test_task_5_the_order_of_the_threads_does_not_matter() -> None:
    check_orders("cuda", [(3, 6, 320), (34, 36, 192)])


def test_task_5_random_shapes() -> None:
    check_random_shapes(CUDA, seed=6)


def test_task_5_types_and_axes() -> None:
    check_other_types(CUDA)


@need_cuda
def test_task_5_on_the_gpu() -> None:
    check_random_shapes(Target("cuda"), seed=7, count=40)
    check_sums(Target("cuda"), 2)
    check_sums(Target("cuda"), 9)
    check_other_types(Target("cuda"))


# --- task 6: one dispatch ----------------------------------------------------------------------------------

BLOCKS_OF_ALL_WIDTHS = [(bits, group_size) for bits in (2, 3, 4, 5, 6, 8) for group_size in (32, 64, 128)]


@pytest.mark.parametrize(("bits", "group_size"), BLOCKS_OF_ALL_WIDTHS)
def test_task_6_every_width(bits: int, group_size: int) -> None:
    for M in (3, 70):
        check_cpu_product(quantized_matmul, (M, 11, 384), bits, group_size)


@pytest.mark.parametrize("leading", [(), (2, 3), (5, 17)], ids=str)
def test_task_6_any_leading_axes(leading: tuple[int, ...]) -> None:
    check_leading_axes(quantized_matmul, leading)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_6_type_is_that_of_x_and_the_scales(dtype: mx.Dtype) -> None:
    check_type(quantized_matmul, 3, dtype)
    low = quantized_matmul(normal(3, 384, seed=3, dtype=dtype), make_weights(11, 384, 6, 64, dtype))
    check_equal(low.dtype, dtype, f"type of the product with 6 bits, all in {dtype}")


def test_task_6_few_rows_do_not_expand_the_weights() -> None:
    check_packed_weights_stay_packed(quantized_matmul)


@pytest.mark.parametrize("bits", [3, 4])
def test_task_6_what_does_not_fit_is_refused(bits: int) -> None:
    with check_value_error(weights=(4, 128), x=(1, 64)):
        quantized_matmul(normal(1, 64, seed=1), make_weights(4, 128, bits, 64))


@pytest.mark.parametrize(("bits", "has_kernels"), [(2, False), (4, True), (8, True), (6, False)])
def test_task_6_each_device_gets_what_its_kernels_know(
    bits: int, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def noted(device: str) -> Callable[..., mx.array]:
        def multiply(x: mx.array, weights: QuantizedWeights, *_: object) -> mx.array:
            calls.append((device, weights.bits))
            return mx.zeros((*x.shape[:-1], weights.shape[0]), x.dtype)

        return multiply

    for module in (dispatch, gpu_operations):
        monkeypatch.setattr(module, "quantized_matmul_gpu", noted("gpu"), raising=False)
    monkeypatch.setattr(dispatch, "quantized_matmul_cpu", noted("cpu"))
    x, weights = normal(2, 128, seed=1), make_weights(4, 128, bits, 64)
    for device, kind in (("cpu", mx.cpu), ("gpu", mx.gpu)):
        calls.clear()
        use_device(kind, monkeypatch)
        quantized_matmul(x, weights)
        what = f"quantized_matmul_… called, and bits, for {bits} bits if the default device is the {device}"
        check_equal(calls, [(device, bits)] * has_kernels, what)


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("bits", [4, 6])
def test_task_6_no_rows_give_an_empty_product(
    bits: int, device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the head gets of a chunk from which nothing is sampled."""
    use_device(device, monkeypatch)
    product = quantized_matmul(normal(2, 0, 128, seed=1, dtype=mx.float16), make_weights(11, 128, bits, 64))
    mx.eval(product)
    check_equal((product.shape, product.dtype), ((2, 0, 11), mx.float32), "shape and type of the product")


@pytest.mark.parametrize("name", ["qwen3-4bit", "qwen3-8bit", "llama-mixed-bits"])
def test_task_6_the_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    (variant,) = (variant for variant in VARIANTS if variant.name == name)
    folder = save(variant, build(variant), tmp_path)
    tokens = mx.array([[(7 * i * i + 3 * i + row) % 160 for i in range(41)] for row in (1, 5)])
    expected = load_model(folder)(tokens)
    model = load_model(folder, operations=Operations(matmul=quantized_matmul))
    check_close(model(tokens), expected, "logits of 82 tokens at once", tolerance=1e-4)
    cache = model.create_kv_cache()
    chunks = [model(tokens[:, i : i + 3], i, cache) for i in range(0, 41, 3)]
    check_close(mx.concatenate(chunks, axis=1), expected, "logits of 3 tokens at a time", tolerance=1e-4)
