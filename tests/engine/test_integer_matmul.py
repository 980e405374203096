"""The product in whole numbers: right for every shape, layout and processor, and the same for any rows."""

import mlx.core as mx
import numpy as np
import pytest

from accelerated import integer_matmul as module
from accelerated.integer_matmul import IntegerProjection, fast_projection, integer_matmul
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.cpu_kernels import compiled_for, on_every_target, poison, spread, threads, use_device
from tests.support.oracles import exact
from tests.support.quantized import expanded_by, random_words
from tiny_llm import QuantizedWeights
from tiny_llm.kernels.gpu_operations import quantized_matmul_gpu
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.ops.quantize import QuantizedProjection

TOLERANCE = 1e-4  # of the largest: x has 16 bits
pytestmark = pytest.mark.usefixtures("on_cpu")


def make_weights(N: int, K: int, bits: int = 4, group_size: int = 64) -> QuantizedWeights:
    scales, biases = normal(2, N, K // group_size, seed=2)
    return QuantizedWeights(
        random_words(N, K * bits // 32, seed=1), scales / 2 ** (bits - 1), biases, group_size, bits
    )


def check_product(M: int, N: int, K: int, bits: int = 4, group_size: int = 64) -> None:
    __tracebackhide__ = True
    x, weights = normal(M, K, seed=3), make_weights(N, K, bits, group_size)
    poison(M, N)
    what = f"[{M}, {K}] times [{N}, {K}] of {bits} bits, groups of {group_size}"
    check_close(integer_matmul(x, weights), exact(x) @ expanded_by(weights).T, what, TOLERANCE)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("M", [1, 3, 8, 16, 17, 23, 64])
def test_every_layout(M: int, group_size: int, bits: int) -> None:
    check_product(M, 71, 384, bits, group_size)


@pytest.mark.parametrize("N", [1, 15, 31, 32, 33, 64, 131])
def test_columns_that_fill_no_panel(N: int) -> None:
    for M in (2, 19):
        check_product(M, N, 128)


def test_every_number_of_rows() -> None:
    for M in range(1, 32):
        check_product(M, 37, 96, group_size=32)


@on_every_target
def test_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTEGER", compiled_for(target, module.INTEGER, monkeypatch))
    for bits in (4, 8):
        for M in (1, 9, 29):
            check_product(M, 71, 384, bits, 32)


def test_no_sum_overflows() -> None:
    """The largest codes of 8 bits in the longest groups, times rows whose entries are all the largest."""
    weights = QuantizedWeights(
        mx.full((33, 32), 2**32 - 1, mx.uint32), mx.ones((33, 1)), mx.zeros((33, 1)), 128, 8
    )
    for M in (1, 17):
        x = mx.full((M, 128), -3.0)
        check_close(integer_matmul(x, weights), np.full((M, 33), -3.0 * 255 * 128), "the largest sums", 1e-6)


@pytest.mark.parametrize("M", [1, 19])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_no_entry_is_off_by_more_than_half_a_step(group_size: int, M: int) -> None:
    """Times the identity, each row comes back as it was rounded."""
    K = 256
    packed = np.zeros((K, K // 8), np.uint32)
    packed[np.arange(K), np.arange(K) // 8] = 1 << 4 * (np.arange(K) % 8)
    grid = mx.ones((K, K // group_size))
    x = normal(M, K, seed=3)
    product = integer_matmul(x, QuantizedWeights(mx.array(packed), grid, 0 * grid, group_size, 4))
    errors, entries = (exact(each).reshape(M, -1, group_size) for each in (product - x, x))
    steps = np.abs(entries).max(axis=-1, keepdims=True) / 32767
    largest = (np.abs(errors) / steps).max()
    assert largest <= 0.501, f"an entry is off by {largest:.3f} steps: it should go to the nearest"


@pytest.mark.parametrize("M", [2, 24])
def test_a_large_entry_costs_only_its_own_group(M: int) -> None:
    """What the others add is seen once the large one meets weights of 0."""
    x, weights = normal(M, 256, seed=3), make_weights(40, 256)
    x[0, 7] = 1e6
    scales, biases = mx.array(weights.scales), mx.array(weights.biases)
    scales[:, 0], biases[:, 0] = 0, 0
    weights = QuantizedWeights(weights.weight, scales, biases, 64, 4)
    expected = exact(x) @ expanded_by(weights).T
    check_close(
        integer_matmul(x, weights), expected, "product with a large entry in a group of zeros", TOLERANCE
    )


def test_threads_do_not_matter() -> None:
    x, weights = normal(20, 256, seed=3), make_weights(331, 256)
    products = []
    for count in (1, 4):
        with threads(count):
            products.append(integer_matmul(x, weights))
            mx.eval(products)
    check_close(products[1], products[0], "product with 4 threads, against that with 1", tolerance=0)


def test_arrays_that_are_not_contiguous() -> None:
    x, weights = normal(19, 256, seed=3), make_weights(40, 256)
    parts = (weights.weight, weights.scales, weights.biases)
    strided = QuantizedWeights(*map(spread, parts), weights.group_size, weights.bits)
    expected = exact(x) @ expanded_by(weights).T
    check_close(integer_matmul(spread(x), weights), expected, "every other entry of a larger x", TOLERANCE)
    check_close(integer_matmul(x, strided), expected, "slices of larger weights", TOLERANCE)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf], ids=str)
@pytest.mark.parametrize("M", [3, 20])
def test_what_is_not_finite_stays_so(value: float, M: int) -> None:
    x, weights = normal(M, 128, seed=3), make_weights(40, 128)
    x[1, 5] = value
    is_finite = np.array(mx.isfinite(integer_matmul(x, weights)))
    assert not is_finite[1].any()
    assert np.delete(is_finite, 1, axis=0).all()


@pytest.mark.parametrize("M", [1, 20])
def test_zeros(M: int) -> None:
    product = integer_matmul(mx.zeros((M, 128)), make_weights(40, 128))
    check_close(product, np.zeros((M, 40)), "the product of zeros", tolerance=0)


def test_no_rows() -> None:
    product = integer_matmul(mx.zeros((0, 128)), make_weights(40, 128))
    check_equal(np.array(product).shape, (0, 40), "shape")


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (5, 1, 7)], ids=str)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_leading_axes_and_types(leading: tuple[int, ...], dtype: mx.Dtype) -> None:
    x, weights = normal(*leading, 128, seed=3, dtype=dtype), make_weights(40, 128)
    expected = exact(x) @ expanded_by(weights).T
    check_close(integer_matmul(x, weights), expected, f"x [{leading}, 128] of {dtype}", TOLERANCE)


@pytest.mark.parametrize("M", [1, 4, 19])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("x_type", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("scales_type", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_projection_in_whole_numbers(
    scales_type: mx.Dtype, x_type: mx.Dtype, has_bias: bool, M: int
) -> None:
    plain = make_weights(71, 128)
    scales, biases = plain.scales.astype(scales_type), plain.biases.astype(scales_type)
    scales[3], biases[5] = 1e-6, 3e-6  # less than float16's smallest number of full precision
    weights = QuantizedWeights(plain.weight, scales, biases)
    bias = normal(71, seed=5, dtype=scales_type) if has_bias else None
    projection = QuantizedProjection(weights, bias, integer_matmul)
    x = normal(2, M, 128, seed=3, dtype=x_type)
    actual, called = IntegerProjection(weights, bias)(x), projection(x)
    check_equal(actual.dtype, called.dtype, "type")
    check_close(actual, called, "product, against that of the function", tolerance=0)
    expected = exact(x) @ expanded_by(weights).T + (exact(bias) if bias is not None else 0)
    error = {mx.float32: TOLERANCE, mx.float16: 1e-3, mx.bfloat16: 8e-3}[actual.dtype]
    check_close(actual, expected, "product", error)
    with check_value_error(K=128, x=(2, 64)):
        IntegerProjection(weights, bias)(normal(2, 64, seed=3))


def test_which_projections_multiply_in_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = QuantizedWeights(*mx.quantize(normal(8, 64, seed=4), group_size=64, bits=5), 64, 5)
    weights = make_weights(8, 64)
    assert isinstance(fast_projection(weights, None, integer_matmul), IntegerProjection)
    assert isinstance(fast_projection(odd, None, integer_matmul), QuantizedProjection)
    assert isinstance(fast_projection(weights, None, quantized_matmul), QuantizedProjection)
    use_device(mx.gpu, monkeypatch)
    assert isinstance(fast_projection(weights, None, integer_matmul), QuantizedProjection)


@pytest.mark.parametrize("M", [0, 1, 20])
def test_on_a_gpu_it_is_the_product_of_its_kernels(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.gpu, monkeypatch)
    x, weights = normal(M, 128, seed=3), make_weights(40, 128)
    check_close(integer_matmul(x, weights), quantized_matmul_gpu(x, weights), "product on a GPU", tolerance=0)


def test_other_widths_and_what_does_not_fit() -> None:
    weight, scales, biases = mx.quantize(normal(40, 128, seed=4), group_size=64, bits=5)
    weights = QuantizedWeights(weight, scales, biases, 64, 5)
    x = normal(20, 128, seed=3)
    check_close(integer_matmul(x, weights), exact(x) @ expanded_by(weights).T, "5 bits", 1e-5)
    with check_value_error(x=(2, 64)):
        integer_matmul(normal(2, 64, seed=3), make_weights(40, 128))
