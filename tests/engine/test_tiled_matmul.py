"""The given product on matrix units, by the emulator: rounded as it says, and used where it may be."""

import mlx.core as mx
import numpy as np
import pytest

from accelerated import tiled_matmul as module
from accelerated.tiled_matmul import multiply_tiles, tiled_matmul
from kernel_runtime.launch import BACKWARD, Language, Target
from tests.engine.test_integer_matmul import make_weights
from tests.support.bits import ROWS, check_rows
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.cpu_kernels import use_device
from tests.support.oracles import exact
from tests.support.precision import check_rounded_once
from tests.support.quantized import expanded_by
from tiny_llm import QuantizedWeights
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels.gpu_operations import FEW_ROWS, quantized_matmul_gpu

both_languages = pytest.mark.parametrize("language", ["metal", "cuda"])
each_type = pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
SHAPES = [(9, 1, 32), (64, 64, 64), (65, 63, 96), (70, 131, 160)]


def short_weights(N: int, K: int, bits: int, group_size: int, dtype: mx.Dtype) -> QuantizedWeights:
    weights = make_weights(N, K, bits, group_size)
    grids = weights.scales.astype(dtype), weights.biases.astype(dtype)
    return QuantizedWeights(weights.weight, *grids, group_size, bits)


@pytest.mark.parametrize("bits", [4, 8])
@each_type
@both_languages
def test_each_weight_is_rounded_and_so_is_the_product(language: Language, dtype: mx.Dtype, bits: int) -> None:
    for (M, N, K), order in zip(SHAPES, (0, BACKWARD, 2, 3), strict=True):
        x, weights = normal(M, K, seed=3, dtype=dtype), short_weights(N, K, bits, 32, dtype)
        rounded = exact(mx.array(expanded_by(weights).astype(np.float32)).astype(dtype))
        product = multiply_tiles(x, weights, Target(language, "emulator", order))
        check_rounded_once(product, exact(x) @ rounded.T, f"[{M}, {K}] times [{N}, {K}] of {bits} bits")


@pytest.mark.parametrize("group_size", [64, 128])
@both_languages
def test_larger_groups(language: Language, group_size: int) -> None:
    x, weights = normal(20, 384, seed=3, dtype=mx.float16), short_weights(13, 384, 4, group_size, mx.float16)
    product = multiply_tiles(x, weights, Target(language, "emulator"))
    check_close(product, exact(x) @ expanded_by(weights).T, f"groups of {group_size}", 2e-3)


@each_type
@both_languages
def test_a_row_keeps_its_bits(language: Language, dtype: mx.Dtype) -> None:
    x, weights = normal(ROWS, 192, seed=3, dtype=dtype), short_weights(5, 192, 4, 64, dtype)
    target = Target(language, "emulator")
    check_rows(lambda x: multiply_tiles(x, weights, target), x, "product on matrix units", (1, 9, 33, 65))


def test_which_product_takes_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix units have 4 and 8 bits, short types and many rows; in all other cases nothing changes."""
    target = Target("metal", "emulator")
    for each in (module, gpu_operations):
        monkeypatch.setattr(each, "default_target", lambda: target)
    use_device(mx.gpu, monkeypatch)
    weights = short_weights(7, 128, 4, 64, mx.float16)
    x = normal(2, 9, 128, seed=3, dtype=mx.float16)
    check_close(tiled_matmul(x, weights), multiply_tiles(x, weights), "[2, 9, 128] of float16", tolerance=0)
    for few in (x[0, :FEW_ROWS], x[0, 0], x[:, :0], x.astype(mx.float32)):
        what = f"{few.shape} of {few.dtype}"
        check_close(tiled_matmul(few, weights), quantized_matmul_gpu(few, weights), what, tolerance=0)
    monkeypatch.setattr(gpu_operations, "FEW_ROWS", 0)
    check_close(
        tiled_matmul(x[0, 0], weights), multiply_tiles(x, weights)[0, 0], "an invariant row", tolerance=0
    )
    odd = QuantizedWeights(*mx.quantize(normal(7, 128, seed=1), 64, 5), 64, 5)
    check_equal(tiled_matmul(x, odd).shape, (2, 9, 7), "shape with 5 bits")
    with check_value_error(x=(9, 64)):
        tiled_matmul(x[0, :, :64], weights)
