"""Week 2 day 2: quantized weights."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from scripts.hardware.memory import memory_use
from tests.support.batching import peak_bytes
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import VARIANTS, Variant, build, save
from tests.support.oracles import LOW_PRECISION, Array, exact
from tests.support.precision import check_types, short_types
from tests.support.quantized import (
    codes_of,
    every_layout,
    every_width,
    expanded,
    expanded_by,
    expanding_mistakes,
    grids_of,
    packed_by_mlx,
    product_mistakes,
    random_words,
    unpacking_mistakes,
)
from tiny_llm import (
    Embedding,
    ModelConfig,
    QuantizedEmbedding,
    QuantizedWeights,
    bandwidth_limit,
    cache_bytes_per_token,
    decode_bytes_per_token,
    dequantize_weights,
    quantize_weights,
    quantized_linear,
    quantized_matmul_simple,
    scaled_dot_product_attention_grouped,
)
from tiny_llm.model.loader import Quantization, Tensors, load_model
from tiny_llm.model.operations import Operations
from tiny_llm.ops.packing import pack, unpack

# --- task 1 ------------------------------------------------------------------------------------------------

ROWS = 5
NUM_WORDS = 2 * 3 * 5  # a whole number of codes of every width


@every_width
def test_task_1_a_row_is_one_stream_of_bits(bits: int) -> None:
    packed = random_words(ROWS, NUM_WORDS, seed=bits)
    mistakes = unpacking_mistakes(packed, bits)
    check_close(unpack(packed, bits), codes_of(packed, bits), f"codes of {bits} bits", 0, mistakes)


@every_layout
def test_task_1_codes_are_those_of_mlx(bits: int, group_size: int) -> None:
    packed, scales, biases = packed_by_mlx(ROWS, 3 * group_size, group_size, bits)
    ones = mx.ones_like(scales), mx.zeros_like(biases)  # so that a weight is its code
    codes = mx.dequantize(packed, *ones, group_size=group_size, bits=bits)
    mistakes = unpacking_mistakes(packed, bits)
    check_close(unpack(packed, bits), codes, f"codes of {bits} bits that MLX packed", 0, mistakes)


def test_task_1_the_first_code_lies_in_the_lowest_bits() -> None:
    check_equal(unpack(mx.array([0x76543210], mx.uint32), 4).tolist(), list(range(8)), "codes of 0x76543210")
    check_equal(unpack(mx.array([0x03020100], mx.uint32), 8).tolist(), [0, 1, 2, 3], "codes of 0x03020100")
    check_equal(
        pack(mx.array([8, 0, 0, 0, 0, 0, 0, 15]), 4).tolist(), [0xF0000008], "word of 8, six zeros, 15"
    )


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_task_1_a_code_may_cross_into_the_next_word(bits: int) -> None:
    i = 32 // bits  # the code that begins in word 0 and ends in word 1
    values = (np.arange(32) == i) * (2**bits - 1)
    words = pack(mx.array(values), bits).tolist()
    whole = (2**bits - 1) << (i * bits)
    check_equal(words[:2], [whole % 2**32, whole >> 32], f"words of code {i}, all ones, and zeros")
    check_equal(unpack(mx.array(words, mx.uint32), bits).tolist(), values.tolist(), "codes of these words")


@every_width
def test_task_1_pack_undoes_unpack(bits: int) -> None:
    packed = random_words(ROWS, NUM_WORDS, seed=10 + bits)
    codes = mx.array(codes_of(packed, bits).astype(np.uint32))
    check_equal(pack(codes, bits).tolist(), packed.tolist(), f"words of {bits} bits")


@pytest.mark.parametrize("dtype", [mx.uint8, mx.int32, mx.uint32, mx.int64], ids=str)
def test_task_1_codes_of_any_integer_type_become_words(dtype: mx.Dtype) -> None:
    packed = random_words(3, 7, seed=20)
    words = pack(mx.array(codes_of(packed, 8).astype(np.uint32)).astype(dtype), 8)
    check_equal(words.dtype, mx.uint32, "type of the words")
    check_equal(words.tolist(), packed.tolist(), f"words of codes in {dtype}")


@every_width
def test_task_1_codes_are_unsigned(bits: int) -> None:
    packed = mx.full((2, NUM_WORDS), 2**32 - 1, mx.uint32)
    codes = unpack(packed, bits)
    check_equal(codes.dtype, mx.uint32, "type of the codes")
    check_equal(codes[0].tolist(), [2**bits - 1] * (NUM_WORDS * 32 // bits), "codes of words of ones")


@pytest.mark.parametrize("leading", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("bits", [3, 4])
def test_task_1_any_leading_axes(leading: tuple[int, ...], bits: int) -> None:
    packed = random_words(*leading, 9, seed=21)
    codes = unpack(packed, bits)
    check_close(codes, codes_of(packed, bits), f"codes of {bits} bits with leading axes {leading}", 0)
    check_equal(pack(codes, bits).tolist(), packed.tolist(), f"words with leading axes {leading}")


@every_width
def test_task_1_arrays_that_are_not_contiguous(bits: int) -> None:
    columns = random_words(NUM_WORDS, ROWS, seed=22)
    strided = random_words(ROWS, 2 * NUM_WORDS, seed=23)[:, ::2]
    for packed in (columns.T, strided):
        codes = codes_of(packed, bits)
        check_close(unpack(packed, bits), codes, f"codes of {bits} bits", 0)
        values = mx.array(np.ascontiguousarray(codes.T).astype(np.uint32)).T
        check_equal(pack(values, bits).tolist(), packed.tolist(), f"words of {bits} bits")


@pytest.mark.parametrize("bits", [0, 1, 7, 16, 32, -4])
def test_task_1_other_widths_are_refused(bits: int) -> None:
    with check_value_error(bits=bits):
        unpack(random_words(2, 32, seed=24), bits)
    with check_value_error(bits=bits):
        pack(mx.zeros((2, 32), mx.uint32), bits)


@pytest.mark.parametrize(("bits", "num_words"), [(3, 4), (5, 7), (6, 2)])
def test_task_1_words_that_end_within_a_code_are_refused(bits: int, num_words: int) -> None:
    with check_value_error(bits=bits, words=num_words):
        unpack(random_words(2, num_words, seed=25), bits)


@pytest.mark.parametrize(("bits", "num_codes"), [(4, 7), (4, 9), (2, 8), (3, 31), (8, 5)])
def test_task_1_codes_that_do_not_fill_words_are_refused(bits: int, num_codes: int) -> None:
    with check_value_error(bits=bits, codes=num_codes):
        pack(mx.zeros((2, num_codes), mx.uint32), bits)


# --- task 2 ------------------------------------------------------------------------------------------------

OUT, GROUPS = 7, 3


def weights_by_mlx(
    num_outputs: int = OUT,
    num_groups: int = GROUPS,
    group_size: int = 64,
    bits: int = 4,
    dtype: mx.Dtype = mx.float32,
    seed: int = 1,
) -> QuantizedWeights:
    parts = packed_by_mlx(num_outputs, num_groups * group_size, group_size, bits, dtype, seed)
    return QuantizedWeights(*parts, group_size, bits)


def grids(weights: QuantizedWeights) -> Any:
    return grids_of(weights.weight, weights.scales, weights.biases, weights.group_size, weights.bits)


@every_layout
def test_task_2_a_weight_is_scale_times_code_plus_bias(bits: int, group_size: int) -> None:
    weights = weights_by_mlx(group_size=group_size, bits=bits)
    actual, what = dequantize_weights(weights), f"weights of {bits} bits in groups of {group_size}"
    check_close(actual, expanded(grids(weights)), what, 1e-6, expanding_mistakes(grids(weights)))


@every_layout
def test_task_2_dequantized_weights_equal_mlx(bits: int, group_size: int) -> None:
    parts = packed_by_mlx(OUT, GROUPS * group_size, group_size, bits)
    with mx.stream(mx.cpu):
        expected = mx.dequantize(*parts, group_size=group_size, bits=bits)
    weights = QuantizedWeights(*parts, group_size, bits)
    mistakes = expanding_mistakes(grids(weights))
    check_close(dequantize_weights(weights), expected, "dequantized weights", 1e-6, mistakes)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_weights_have_the_type_of_the_scales(dtype: mx.Dtype, tolerance: float) -> None:
    for bits in (4, 8):
        weights = weights_by_mlx(bits=bits, dtype=dtype)
        actual = dequantize_weights(weights)
        check_equal(actual.dtype, dtype, "type of the weights")
        check_close(actual, expanded(grids(weights)), f"weights of {bits} bits", tolerance)


def test_task_2_groups_of_a_square_weight() -> None:
    weights = weights_by_mlx(num_outputs=32, num_groups=1, group_size=32)
    mistakes = expanding_mistakes(grids(weights))
    check_close(dequantize_weights(weights), expanded(grids(weights)), "weights [32, 32]", 1e-6, mistakes)


def test_task_2_as_many_groups_as_weights_in_one() -> None:
    weights = weights_by_mlx(num_outputs=2, num_groups=32, group_size=32)
    mistakes = expanding_mistakes(grids(weights))
    check_close(dequantize_weights(weights), expanded(grids(weights)), "weights [2, 1024]", 1e-6, mistakes)


def test_task_2_parts_that_are_not_contiguous() -> None:
    whole = weights_by_mlx(num_outputs=2 * OUT)
    parts = (whole.weight[::2], whole.scales[::2], whole.biases[::2])
    rows = expanded(grids(whole))[::2]
    check_close(dequantize_weights(QuantizedWeights(*parts)), rows, "every second row", 1e-6)


@every_layout
def test_task_2_quantized_as_mlx_does(bits: int, group_size: int) -> None:
    w = normal(OUT, GROUPS * group_size, seed=2)
    with mx.stream(mx.cpu):
        weight, scales, biases = mx.quantize(w, group_size=group_size, bits=bits)
    weights = quantize_weights(w, group_size, bits)
    check_close(weights.biases, biases, f"biases of {bits} bits")
    check_close(weights.scales, scales, f"scales of {bits} bits", 1e-5, scale_mistakes(w, group_size, bits))
    codes, expected = codes_of(weights.weight, bits), codes_of(weight, bits)
    differ = codes != expected
    at_a_tie = (np.abs(codes - expected) <= 1).all() and differ.mean() <= 0.01
    if not at_a_tie:
        steps = (exact(w).reshape(*scales.shape, -1) - exact(biases)[..., None]) / exact(scales)[..., None]
        unclipped = np.rint(steps).astype(np.int64).reshape(codes.shape)
        mistakes = {
            "codes rounded down: take the nearest": np.floor(steps + 1e-4).clip(0, 2**bits - 1),
            "codes that are not clipped: one that is too large sets bits of the next": (
                unclipped % 2**bits | np.roll(unclipped, 1) >> bits
            ),
        }
        shaped = {name: each.reshape(codes.shape) for name, each in mistakes.items()}
        check_close(mx.array(codes), expected, f"codes of {bits} bits", 0, shaped)


def scale_mistakes(w: mx.array, group_size: int, bits: int) -> dict[str, Callable[[], Any]]:
    groups = exact(w).reshape(OUT, -1, group_size)
    lowest, highest = groups.min(axis=-1), groups.max(axis=-1)
    edge = np.where(-lowest > highest, lowest, highest)
    sign = np.where(-lowest > highest, 1, -1)
    return {
        "the range over 2**bits: there are 2**bits - 1 steps": lambda: (
            edge / np.rint(edge * 2**bits / (sign * (highest - lowest)))
        ),
        "(highest - lowest) / (2**bits - 1), not yet fitted so that zero is a value": lambda: (
            sign * (highest - lowest) / (2**bits - 1)
        ),
        "the scales with the other sign: steps lead away from the bias": lambda: (
            -edge / np.rint(edge * (2**bits - 1) / (sign * (highest - lowest)))
        ),
    }


def check_errors(w: mx.array, weights: QuantizedWeights) -> None:
    """Half a step, but a step where the grid was shrunk and the code is the last."""
    __tracebackhide__ = True
    codes, scales, _ = grids(weights)
    steps = np.abs(expanded(grids(weights)) - exact(w)).reshape(codes.shape) / np.abs(scales)
    is_last = codes == 2**weights.bits - 1
    for name, which, most in (("", ~is_last, 0.5), (" at the cut end", is_last, 1.0)):
        worst = steps[which].max(initial=0.0)
        assert worst <= most + 1e-3, f"a weight{name} is {worst:.3f} steps off, at most {most} are due"


@every_layout
def test_task_2_errors_are_at_most_half_a_step(bits: int, group_size: int) -> None:
    w = normal(11, 5 * group_size, seed=3)
    check_errors(w, quantize_weights(w, group_size, bits))


@pytest.mark.parametrize("offset", [-9.0, -2.0, 2.0, 9.0])
def test_task_2_weights_of_one_sign(offset: float) -> None:
    w = offset + normal(OUT, 192, seed=4)
    weights = quantize_weights(w)
    check_errors(w, weights)
    with mx.stream(mx.cpu):
        expected = mx.quantize(w)
    check_close(weights.scales, expected[1], "scales")
    check_close(weights.biases, expected[2], "biases")


@every_width
def test_task_2_zero_stays_zero(bits: int) -> None:
    w = mx.where(normal(OUT, 192, seed=5) < 0.3, 0.0, normal(OUT, 192, seed=6))
    values = dequantize_weights(quantize_weights(w, 64, bits))
    of_zeros = mx.where(w == 0, values, 0.0)
    check_close(of_zeros, np.zeros(w.shape), "what weights of zero become", 1e-6)


@every_width
def test_task_2_the_weight_furthest_from_zero_stays_exact(bits: int) -> None:
    w = normal(OUT, 192, seed=7)
    groups, values = (
        exact(x).reshape(OUT, GROUPS, 64) for x in (w, dequantize_weights(quantize_weights(w, 64, bits)))
    )
    furthest = np.abs(groups).argmax(axis=-1)[..., None]
    actual = mx.array(np.take_along_axis(values, furthest, axis=-1).astype(np.float32))
    expected = np.take_along_axis(groups, furthest, axis=-1)
    check_close(actual, expected, "the weights furthest from zero in their groups", 1e-6)


@pytest.mark.parametrize("size", [1e-9, 1e-7], ids=str)
def test_task_2_grids_of_very_small_weights(size: float) -> None:
    w = size * normal(OUT, 64, seed=10)
    with mx.stream(mx.cpu):
        _, scales, biases = mx.quantize(w)
    weights = quantize_weights(w)
    check_close(weights.scales, scales, f"scales of weights of about {size}: a step is 1e-7 at least")
    what = f"biases of weights of about {size}, over that: 0 where zero is no step away"
    check_close(weights.biases / size, biases / size, what)


@pytest.mark.parametrize("value", [0.0, 0.7, -0.7, 1e-9, 300.0])
def test_task_2_a_group_of_one_value(value: float) -> None:
    w = mx.concatenate([mx.full((OUT, 64), value), normal(OUT, 64, seed=8)], axis=1)
    weights = quantize_weights(w)
    expected = np.full((OUT, 64), 0.0 if abs(value) < 5e-8 else value)  # half of the smallest step
    check_close(dequantize_weights(weights)[:, :64], expected, f"a group of {value}", 1e-6)
    check_errors(w[:, 64:], quantize_weights(w[:, 64:]))
    assert bool(mx.isfinite(weights.scales).all()), f"the scales of a group of {value} are not finite"


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_scales_have_the_type_of_the_weights(dtype: mx.Dtype, tolerance: float) -> None:
    w = normal(OUT, 192, seed=9, dtype=dtype)
    weights = quantize_weights(w)
    with mx.stream(mx.cpu):
        expected = mx.quantize(w)
    check_equal([weights.scales.dtype, weights.biases.dtype], [dtype] * 2, "types of scales and biases")
    check_close(weights.scales, expected[1], "scales", tolerance)
    check_close(weights.biases, expected[2], "biases", tolerance)
    check_equal(
        bool((np.abs(codes_of(weights.weight, 4) - codes_of(expected[0], 4)) <= 1).all()), True, "codes alike"
    )


@every_layout
@short_types
def test_task_2_short_weights_are_packed_as_mlx_packs_them(
    dtype: mx.Dtype, bits: int, group_size: int
) -> None:
    w = normal(OUT, 5 * group_size, seed=9, dtype=dtype)
    with mx.stream(mx.cpu):
        expected = mx.quantize(w, group_size=group_size, bits=bits)
        found = quantize_weights(w, group_size, bits)  # another device divides in another way
    groups = w.reshape(OUT, -1, group_size)
    same = (found.scales == expected[1]) & (found.biases == expected[2])
    num_other = int((~same).sum().item())
    cause = f"Choose them in float32, from w in float32, and cast them to {dtype} last."
    if num_other:
        fail(f"scales and biases of {num_other} of {groups.shape[1] * OUT} groups are not MLX's", cause)
    codes = [codes_of(words, bits) for words in (found.weight, expected[0])]
    num_other = int((codes[0] != codes[1]).sum())
    if num_other > w.size / 200:  # in the middle between two codes, division and product round differently
        fail(f"{num_other} of {w.size} codes of {dtype} weights are not MLX's, though the scales are", cause)


def test_task_2_weights_that_are_not_contiguous() -> None:
    w = normal(128, OUT, seed=10).T
    with mx.stream(mx.cpu):
        expected = mx.dequantize(*mx.quantize(mx.contiguous(w), group_size=32), group_size=32)
    check_close(dequantize_weights(quantize_weights(w, 32)), expected, "weights of w.T", 1e-5)


@pytest.mark.parametrize(
    ("shape", "group_size"), [((7, 96), 64), ((7, 100), 32), ((64,), 64), ((2, 3, 64), 64)]
)
def test_task_2_weights_that_make_no_groups_are_refused(shape: tuple[int, ...], group_size: int) -> None:
    with check_value_error(group_size=group_size, w=shape):
        quantize_weights(normal(*shape, seed=11), group_size)


@pytest.mark.parametrize(("bits", "group_size"), [(7, 64), (1, 64), (4, 16), (4, 96)])
def test_task_2_layouts_that_mlx_has_not_are_refused(bits: int, group_size: int) -> None:
    shown = {"bits": bits} if group_size == 64 else {"group_size": group_size}
    w = normal(OUT, 384, seed=12)
    with check_value_error(**shown):
        quantize_weights(w, group_size, bits)
    weight, scales, biases = packed_by_mlx(OUT, 384)
    with check_value_error(**shown):
        QuantizedWeights(weight, scales, biases, group_size, bits)


@every_layout
def test_task_2_shape_is_that_of_the_weight(bits: int, group_size: int) -> None:
    weights = weights_by_mlx(group_size=group_size, bits=bits)
    check_equal(weights.shape, (OUT, GROUPS * group_size), f"shape of weights of {bits} bits")


SIZES = {
    "4 bits, float32": ({}, 5.0),
    "4 bits, float16": ({"dtype": mx.float16}, 4.5),
    "4 bits, float16, groups of 32": ({"dtype": mx.float16, "group_size": 32}, 5.0),
    "3 bits, bfloat16, groups of 128": ({"dtype": mx.bfloat16, "group_size": 128, "bits": 3}, 3.25),
    "8 bits, float32, groups of 32": ({"group_size": 32, "bits": 8}, 10.0),
}


@pytest.mark.parametrize(("layout", "bits"), SIZES.values(), ids=SIZES)
def test_task_2_bits_of_a_weight_include_its_scale_and_bias(layout: dict[str, Any], bits: float) -> None:
    weights = weights_by_mlx(**layout)
    check_equal(weights.bits_per_weight, bits, "bits for each weight")
    num_bytes = weights.weight.nbytes + weights.scales.nbytes + weights.biases.nbytes
    check_equal(weights.num_bytes, num_bytes, "bytes of weight, scales and biases")


def misfit(**changes: mx.array | int) -> dict[str, Any]:
    weight, scales, biases = packed_by_mlx(OUT, 192)
    return {"weight": weight, "scales": scales, "biases": biases, **changes}


MISFITS = {
    "other bits": (misfit(bits=8), {"scales": (OUT, 3)}),
    "other groups": (misfit(group_size=32), {"scales": (OUT, 3)}),
    "rows": (misfit(weight=random_words(OUT + 1, 24, seed=1)), {"scales": (OUT, 3)}),
    "words": (misfit(weight=random_words(OUT, 32, seed=1)), {"scales": (OUT, 3)}),
    "a scale without a bias": (
        misfit(biases=normal(OUT, 2, seed=1)),
        {"scales": (OUT, 3), "biases": (OUT, 2)},
    ),
    "types of scale and bias": (misfit(biases=normal(OUT, 3, seed=1, dtype=mx.float16)), {}),
    "scales of a row": (misfit(scales=normal(3, seed=1), biases=normal(3, seed=2)), {"scales": (3,)}),
    "scales of three axes": (
        misfit(scales=normal(OUT, 1, 3, seed=1), biases=normal(OUT, 1, 3, seed=2)),
        {"scales": (OUT, 1, 3)},
    ),
    "codes": (misfit(weight=normal(OUT, 24, seed=1)), {}),
    "signed codes": (misfit(weight=mx.zeros((OUT, 24), mx.int32)), {}),
    "a row of words": (misfit(weight=random_words(24, seed=1)), {"weight": (24,)}),
    "a width that MLX has not": (misfit(bits=16, weight=random_words(OUT, 96, seed=1)), {"bits": 16}),
    "groups that MLX has not": (
        misfit(group_size=16, scales=normal(OUT, 12, seed=1), biases=normal(OUT, 12, seed=2)),
        {"group_size": 16},
    ),
    "scales in integers": (
        misfit(scales=mx.ones((OUT, 3), mx.uint8), biases=mx.ones((OUT, 3), mx.uint8)),
        {},
    ),
}


@every_width
def test_task_2_a_group_whose_ends_are_equally_far_from_zero(bits: int) -> None:
    w = mx.array([[-1.5, 1.5] * 32])
    with mx.stream(mx.cpu):
        weight, scales, biases = mx.quantize(w, group_size=64, bits=bits)
    found = quantize_weights(w, 64, bits)
    check_equal(found.scales.tolist(), scales.tolist(), "scale that MLX chooses")
    check_equal(found.biases.tolist(), biases.tolist(), "bias that MLX chooses")
    check_equal(found.weight.tolist(), weight.tolist(), "words that MLX packs")


@pytest.mark.parametrize(("parts", "shown"), MISFITS.values(), ids=MISFITS)
def test_task_2_parts_that_do_not_belong_together_are_refused(
    parts: dict[str, Any], shown: dict[str, Any]
) -> None:
    with check_value_error(**shown):
        QuantizedWeights(**parts)
    check_equal(QuantizedWeights(**misfit()).shape, (OUT, 192), "shape of parts that fit")


# --- task 3 ------------------------------------------------------------------------------------------------


def check_product(actual: mx.array, x: mx.array, weights: QuantizedWeights, tolerance: float = 1e-5) -> None:
    __tracebackhide__ = True
    mistakes = product_mistakes(exact(x), grids(weights))
    expected = exact(x) @ expanded(grids(weights)).T
    check_close(actual, expected, "product of x and packed weights", tolerance, mistakes)


@every_layout
def test_task_3_product_of_every_layout(bits: int, group_size: int) -> None:
    weights, x = weights_by_mlx(group_size=group_size, bits=bits), normal(5, 3 * group_size, seed=13)
    check_product(quantized_matmul_simple(x, weights), x, weights)


@every_layout
def test_task_3_product_equals_mlx(bits: int, group_size: int) -> None:
    parts, x = packed_by_mlx(OUT, 3 * group_size, group_size, bits), normal(5, 3 * group_size, seed=14)
    with mx.stream(mx.cpu):
        expected = mx.quantized_matmul(x, *parts, transpose=True, group_size=group_size, bits=bits)
    actual = quantized_matmul_simple(x, QuantizedWeights(*parts, group_size, bits))
    check_close(actual, expected, "product of x and packed weights")


def test_task_3_product_with_a_square_weight() -> None:
    weights, x = weights_by_mlx(num_outputs=192), normal(5, 192, seed=15)
    check_product(quantized_matmul_simple(x, weights), x, weights)


@pytest.mark.parametrize("leading", [(), (1,), (11,), (2, 3), (2, 1, 5)], ids=str)
def test_task_3_any_leading_axes(leading: tuple[int, ...]) -> None:
    weights, x = weights_by_mlx(), normal(*leading, 192, seed=16)
    check_product(quantized_matmul_simple(x, weights), x, weights)


def test_task_3_x_that_is_not_contiguous() -> None:
    weights = weights_by_mlx()
    for x in (normal(192, 5, seed=17).T, normal(5, 384, seed=18)[:, ::2], normal(5, 3, 192, seed=19)[:, 1]):
        check_product(quantized_matmul_simple(x, weights), x, weights)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
@pytest.mark.parametrize("bits", [4, 8])
def test_task_3_type_is_kept(bits: int, dtype: mx.Dtype, tolerance: float) -> None:
    weights, x = weights_by_mlx(bits=bits, dtype=dtype), normal(5, 192, seed=20, dtype=dtype)
    actual = quantized_matmul_simple(x, weights)
    check_equal(actual.dtype, dtype, "type of the product")
    check_product(actual, x, weights, tolerance)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_3_the_longer_type_wins(dtype: mx.Dtype) -> None:
    x, weights = normal(5, 192, seed=21), weights_by_mlx(dtype=dtype)
    check_equal(
        quantized_matmul_simple(x, weights).dtype, mx.float32, f"type of float32 times {dtype} scales"
    )


def check_types_of_products(function: Callable[..., mx.array], what: str, *names: str) -> None:
    """Of x, the scales and, if it is named, the bias of the layer."""
    __tracebackhide__ = True
    weights = weights_by_mlx()

    def packed(scales: mx.array) -> QuantizedWeights:
        biases = weights.biases.astype(scales.dtype)
        return QuantizedWeights(weights.weight, scales, biases, weights.group_size, weights.bits)

    def expected(x: Array, scales: Array, *bias: Array) -> Array:
        parts = (grids(weights)[0], scales[..., None], exact(weights.biases)[..., None])
        return x @ expanded(parts).T + sum(bias)

    operands = {"x": normal(5, 192, seed=21), "scales": weights.scales, "bias": normal(OUT, seed=24)}
    check_types(
        lambda x, scales, *bias: function(x, packed(scales), *bias),
        expected,
        what,
        {name: operands[name] for name in names},
    )


def test_task_3_the_type_of_x_and_the_scales_together() -> None:
    check_types_of_products(quantized_matmul_simple, "product", "x", "scales")
    check_types_of_products(quantized_linear, "product plus bias", "x", "scales", "bias")


@pytest.mark.parametrize("shape", [(191,), (5, 7), (192, 5), (3, 193)], ids=str)
def test_task_3_x_of_other_inputs_is_refused(shape: tuple[int, ...]) -> None:
    weights = weights_by_mlx()
    with check_value_error(weights=weights.shape, x=shape):
        quantized_matmul_simple(normal(*shape, seed=22), weights)


@pytest.mark.parametrize("leading", [(), (5,), (2, 3)], ids=str)
def test_task_3_linear_adds_the_bias_of_the_layer(leading: tuple[int, ...]) -> None:
    weights, x, bias = weights_by_mlx(), normal(*leading, 192, seed=23), normal(OUT, seed=24)
    expected = exact(x) @ expanded(grids(weights)).T + exact(bias)
    mistakes = product_mistakes(exact(x), grids(weights), exact(bias))
    check_close(quantized_linear(x, weights, bias), expected, "product plus bias", mistakes=mistakes)


def test_task_3_linear_without_a_bias_is_the_product() -> None:
    weights, x = weights_by_mlx(), normal(5, 192, seed=25)
    check_product(quantized_linear(x, weights), x, weights)


@pytest.mark.parametrize("has_bias", [False, True])
def test_task_3_linear_multiplies_with_the_function_it_is_given(has_bias: bool) -> None:
    calls = []

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        calls.append((x, weights))
        return mx.full((*x.shape[:-1], OUT), 2.0)

    weights, x = weights_by_mlx(), normal(2, 5, 192, seed=26)
    bias = normal(OUT, seed=27) if has_bias else None
    actual = quantized_linear(x, weights, bias, matmul)
    as_they_are = [(given is x, packed is weights) for given, packed in calls]
    check_equal(as_they_are, [(True, True)], "one call, with x and the weights as they are")
    expected = np.full((2, 5, OUT), 2.0) + (exact(bias) if bias is not None else 0.0)
    check_close(actual, expected, "twos plus bias")


def test_task_3_nothing_of_the_weights_changes() -> None:
    weights = weights_by_mlx()
    before = [part.tolist() for part in (weights.weight, weights.scales, weights.biases)]
    mx.eval(quantized_linear(normal(5, 192, seed=28), weights, normal(OUT, seed=29)))
    after = [part.tolist() for part in (weights.weight, weights.scales, weights.biases)]
    check_equal(after, before, "weight, scales and biases after a product")


def test_task_3_expanded_weights_are_not_kept() -> None:
    weights, x = weights_by_mlx(num_outputs=1009, num_groups=7), normal(3, 448, seed=30)
    mx.eval(weights.weight, weights.scales, weights.biases, x)
    with memory_use(reuses_buffers=False) as memory:
        product = quantized_matmul_simple(x, weights)
        mx.eval(product)
    assert memory.held < weights.num_bytes, (
        f"{memory.held} bytes are held after a product of {product.nbytes}"
    )


# --- task 4 ------------------------------------------------------------------------------------------------

V, E = 23, 192


def embedding_of(
    dtype: mx.Dtype = mx.float32, bits: int = 4, group_size: int = 64
) -> tuple[QuantizedEmbedding, QuantizedWeights]:
    weights = weights_by_mlx(V, E // group_size, group_size, bits, dtype)
    return QuantizedEmbedding(V, E, weights), weights


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_task_4_each_token_has_its_vector(shape: tuple[int, ...], bits: int) -> None:
    embedding, weights = embedding_of(bits=bits)
    tokens = mx.random.randint(0, V, shape, key=mx.random.key(31))
    table, ids = expanded_by(weights), np.array(tokens)
    by_row = {
        name: (lambda wrong=wrong: wrong()[ids]) for name, wrong in expanding_mistakes(grids(weights)).items()
    }
    mistakes = {
        "the vectors of the tokens before: ids count from 0": table[ids - 1],
        **{name.replace("the weights", "the vectors"): wrong for name, wrong in by_row.items()},
    }
    check_close(embedding(tokens), table[ids], f"vectors of tokens {shape}", 1e-6, mistakes)


def test_task_4_first_and_last_token() -> None:
    embedding, weights = embedding_of()
    expected = expanded_by(weights)[[0, -1]]
    check_close(embedding(mx.array([0, V - 1])), expected, "vectors of the first and the last token", 1e-6)


@pytest.mark.parametrize("dtype", [mx.int64, mx.uint32, mx.uint8], ids=str)
def test_task_4_ids_of_any_integer_type(dtype: mx.Dtype) -> None:
    embedding, weights = embedding_of()
    expected = expanded_by(weights)[[[3, 5]]]
    check_close(embedding(mx.array([[3, 5]], dtype)), expected, f"vectors of tokens in {dtype}", 1e-6)


@pytest.mark.parametrize("shape", [(E,), (3, E), (2, 3, E)], ids=str)
def test_task_4_as_linear_is_the_output_head(shape: tuple[int, ...]) -> None:
    embedding, weights = embedding_of()
    x = normal(*shape, seed=32)
    check_product(embedding.as_linear(x), x, weights)


def test_task_4_as_linear_multiplies_with_the_function_it_is_given() -> None:
    weights, x, calls = embedding_of()[1], normal(2, 3, E, seed=33), []

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        calls.append(weights)
        return 2 * quantized_matmul_simple(x, weights)

    embedding = QuantizedEmbedding(V, E, weights, matmul)
    check_close(
        embedding.as_linear(x), 2 * exact(x) @ expanded_by(weights).T, "logits, doubled by the function"
    )
    check_equal([each is weights for each in calls], [True], "whether the product got the packed weights")


def test_task_4_logits_have_the_type_of_x_and_the_scales_together() -> None:
    check_types_of_products(
        lambda x, weights: QuantizedEmbedding(OUT, 192, weights).as_linear(x), "logits", "x", "scales"
    )


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_4_type_of_the_scales_is_kept(dtype: mx.Dtype, tolerance: float) -> None:
    embedding, weights = embedding_of(dtype)
    x = normal(3, E, seed=34, dtype=dtype)
    vectors, logits = embedding(mx.array([4, 2])), embedding.as_linear(x)
    check_equal([vectors.dtype, logits.dtype], [dtype] * 2, "types of the vectors and the logits")
    check_close(vectors, expanded_by(weights)[[4, 2]], "vectors of tokens 4 and 2", tolerance)
    check_close(logits, exact(x) @ expanded_by(weights).T, "logits", tolerance)


def test_task_4_only_the_rows_looked_up_are_expanded() -> None:
    weights = weights_by_mlx(20011, 2)
    embedding, tokens = QuantizedEmbedding(20011, 128, weights), mx.array([[3, 19999, 7]])
    mx.eval(weights.weight, weights.scales, weights.biases, tokens)
    num_bytes = peak_bytes(lambda: mx.eval(embedding(tokens)))
    assert num_bytes < 0.1 * weights.num_bytes, (
        f"looking up 3 of 20011 rows took {num_bytes} bytes: only these rows are to be expanded"
    )


@pytest.mark.parametrize("shape", [(V, 128), (V + 1, E), (E, V)], ids=str)
def test_task_4_weights_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    weights = weights_by_mlx(V, 3)
    with check_value_error(**{"(vocab_size, embedding_dim)": shape, "weights": weights.shape}):
        QuantizedEmbedding(*shape, weights)


# The tensors of a checkpoint

FOUR_BITS = {"bits": 4, "group_size": 32}
CONFIG = Quantization({**FOUR_BITS, "b": {"bits": 8, "group_size": 64}, "c": False})
PACKED = Operations(matmul=quantized_matmul_simple)


def tensors_of(**layers: QuantizedWeights | mx.array) -> dict[str, mx.array]:
    found = {}
    for name, weights in layers.items():
        if isinstance(weights, mx.array):
            found[f"{name}.weight"] = weights
        else:
            parts = (weights.weight, weights.scales, weights.biases)
            found |= {
                f"{name}.{part}": x for part, x in zip(("weight", "scales", "biases"), parts, strict=True)
            }
    return found


def kept_packed(
    tensors: dict[str, mx.array],
    quantization: Quantization | None = CONFIG,
    dtype: mx.Dtype | None = None,
    operations: Operations = PACKED,
) -> Tensors:
    return Tensors(tensors, quantization, dtype, operations)


def layer_a(dtype: mx.Dtype = mx.float32) -> QuantizedWeights:
    return weights_by_mlx(OUT, 6, 32, 4, dtype, seed=40)


def layer_b() -> QuantizedWeights:
    return weights_by_mlx(11, 3, 64, 8, seed=41)


@pytest.mark.parametrize("operations", [PACKED, Operations()], ids=["with a matmul", "without"])
def test_task_4_a_packed_layer_as_it_is(operations: Operations) -> None:
    given = layer_b()
    tensors = kept_packed(tensors_of(a=layer_a(), b=given), operations=operations)
    taken = tensors.take_packed("b", 11, 192)
    check_equal((taken.bits, taken.group_size), (8, 64), "bits and group size")
    for part in ("weight", "scales", "biases"):
        check_equal(getattr(taken, part).tolist(), getattr(given, part).tolist(), part)
    tensors.take_packed("a", OUT, 192)
    tensors.check_all_used(is_tied=False)


def test_task_4_without_a_matmul_packed_weights_are_expanded() -> None:
    tensors = kept_packed(tensors_of(a=layer_a()), operations=Operations())
    embedding = tensors.take_embedding("a", OUT, 192)
    check_equal(type(embedding), Embedding, "type of the embedding")
    check_close(embedding.weight, expanded_by(layer_a()), "weight", 1e-6)


def test_task_4_a_projection_of_packed_weights() -> None:
    x, tensors = normal(5, 192, seed=42), kept_packed(tensors_of(a=layer_a()))
    check_product(tensors.take_projection("a", OUT, 192, False)(x), x, layer_a())


def test_task_4_a_layer_may_have_bits_of_its_own() -> None:
    x, tensors = normal(5, 192, seed=42), kept_packed(tensors_of(a=layer_a(), b=layer_b()))
    check_product(tensors.take_projection("b", 11, 192, False)(x), x, layer_b())
    check_product(tensors.take_projection("a", OUT, 192, False)(x), x, layer_a())


def test_task_4_a_plain_layer_among_packed_ones() -> None:
    x, w = normal(5, 192, seed=42), normal(13, 192, seed=43)
    tensors = kept_packed(tensors_of(a=layer_a(), c=w))
    check_close(
        tensors.take_projection("c", 13, 192, False)(x), exact(x) @ exact(w).T, "product of a plain layer"
    )


def test_task_4_a_projection_with_a_bias() -> None:
    x, bias = normal(5, 192, seed=42), normal(OUT, seed=44)
    tensors = kept_packed({**tensors_of(a=layer_a()), "a.bias": bias})
    actual = tensors.take_projection("a", OUT, 192, True)(x)
    mistakes = product_mistakes(exact(x), grids(layer_a()), exact(bias))
    expected = exact(x) @ expanded_by(layer_a()).T + exact(bias)
    check_close(actual, expected, "product plus bias", mistakes=mistakes)
    tensors.check_all_used(is_tied=False)


def test_task_4_the_matmul_reaches_projection_and_embedding() -> None:
    calls = []

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        calls.append(weights.shape)
        return quantized_matmul_simple(x, weights)

    x, tensors = (
        normal(5, 192, seed=42),
        kept_packed(tensors_of(a=layer_a(), b=layer_b()), operations=Operations(matmul=matmul)),
    )
    tensors.take_projection("a", OUT, 192, False)(x)
    tensors.take_embedding("b", 11, 192).as_linear(x)
    check_equal(calls, [(OUT, 192), (11, 192)], "shapes of the weights that the function was called with")


def test_task_4_embeddings_packed_and_plain() -> None:
    w, tokens = normal(13, 192, seed=43), mx.array([[3, 5, 3]])
    tensors = kept_packed(tensors_of(a=layer_a(), c=w))
    embeddings = [tensors.take_embedding("a", OUT, 192), tensors.take_embedding("c", 13, 192)]
    check_equal(
        [type(each) for each in embeddings], [QuantizedEmbedding, Embedding], "types of the embeddings"
    )
    check_close(embeddings[0](tokens), expanded_by(layer_a())[[[3, 5, 3]]], "vectors of packed rows", 1e-6)
    check_close(embeddings[1](tokens), exact(w)[[[3, 5, 3]]], "vectors of plain rows")


def test_task_4_packed_weights_are_there_until_they_are_taken() -> None:
    given = tensors_of(a=layer_a(), c=normal(13, 192, seed=43))
    tensors = kept_packed(given)
    check_equal(
        [name in tensors for name in ("a.weight", "c.weight", "d.weight")],
        [True, True, False],
        "which are there",
    )
    tensors.take_projection("a", OUT, 192, False)
    check_equal(
        [name in tensors for name in ("a.weight", "c.weight")], [False, True], "which are there after a"
    )
    check_equal(
        sorted(given), sorted(tensors_of(a=layer_a(), c=given["c.weight"])), "names in the dict given"
    )
    with check_value_error(name="a.weight"):
        tensors.take_projection("a", OUT, 192, False)


def test_task_4_a_packed_layer_too_many_is_named() -> None:
    tensors = kept_packed(tensors_of(a=layer_a(), b=layer_b()))
    tensors.take_projection("a", OUT, 192, False)
    with check_value_error(name="b"):
        tensors.check_all_used(is_tied=False)
    with check_value_error(name="d.weight"):
        kept_packed(tensors_of(d=normal(3, 5, seed=45))).check_all_used(is_tied=False)


def test_task_4_a_spare_packed_head_is_passed_over_if_tied() -> None:
    tensors = kept_packed(tensors_of(a=layer_a(), lm_head=layer_a()))
    tensors.take_packed("a", OUT, 192)
    tensors.check_all_used(is_tied=True)
    with check_value_error(name="lm_head"):
        tensors.check_all_used(is_tied=False)


def test_task_4_packed_weights_of_another_shape_are_named() -> None:
    shape = (OUT + 1, 192)
    for take in (
        lambda tensors: tensors.take_projection("a", *shape, False),
        lambda t: t.take_embedding("a", *shape),
    ):
        with check_value_error(layer="a", shape=shape, **{"weights.shape": (OUT, 192)}):
            take(kept_packed(tensors_of(a=layer_a())))


@pytest.mark.parametrize("num_inputs", [64, OUT, 4 * 192])
def test_task_4_packed_rows_of_another_length_are_named(num_inputs: int) -> None:
    with check_value_error(layer="a", num_inputs=num_inputs):
        kept_packed(tensors_of(a=layer_a())).take_projection("a", OUT, num_inputs, False)


@pytest.mark.parametrize("config", [{"bits": 8, "group_size": 64}, {"bits": 4, "group_size": None}], ids=str)
def test_task_4_bits_and_groups_follow_from_the_shapes(config: dict[str, Any]) -> None:
    weights = kept_packed(tensors_of(a=layer_a()), Quantization(config)).take_packed("a", OUT, 192)
    check_equal((weights.bits, weights.group_size), (4, 32), "bits and group size")


NAME = "layers.7.q_proj"
REFUSED = {
    "no quantization": ({}, None, {"layer": NAME}),
    "another mode": ({}, {**FOUR_BITS, "mode": "mxfp4"}, {"layer": NAME, "mode": "mxfp4"}),
    "another mode of its own": (
        {},
        {**FOUR_BITS, NAME: {**FOUR_BITS, "mode": "mxfp8"}},
        {"layer": NAME, "mode": "mxfp8"},
    ),
    "no biases": ({f"{NAME}.biases": None}, FOUR_BITS, {"layer": NAME}),
    "no weight": ({f"{NAME}.weight": None}, FOUR_BITS, {"name": f"{NAME}.weight"}),
    "biases of another shape": ({f"{NAME}.biases": normal(3, 6, seed=46)}, FOUR_BITS, {"layer": NAME}),
}


@pytest.mark.parametrize(("changes", "config", "shown"), REFUSED.values(), ids=REFUSED)
def test_task_4_layers_packed_otherwise_are_refused(
    changes: dict[str, Any], config: dict[str, Any] | None, shown: dict[str, Any]
) -> None:
    tensors = {**tensors_of(**{NAME: layer_a()}), **changes}
    quantization = None if config is None else Quantization(config)
    with check_value_error(**shown):
        kept_packed({name: x for name, x in tensors.items() if x is not None}, quantization).take_projection(
            NAME, OUT, 192, False
        )


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
def test_task_4_scales_are_cast_before_the_product(dtype: mx.Dtype) -> None:
    """Computing in float32 from scales in bfloat16, no weight is rounded to bfloat16."""
    stored, x = layer_a(mx.bfloat16), normal(5, 192, seed=42, dtype=dtype)
    tensors = kept_packed({**tensors_of(a=stored), "a.bias": normal(OUT, seed=44)}, CONFIG, dtype)
    product = tensors.take_projection("a", OUT, 192, True)(x)
    check_equal(product.dtype, dtype, "type of the product")
    expected = exact(x) @ expanded_by(stored).T + exact(normal(OUT, seed=44))
    check_close(product, expected, "product", {mx.float32: 1e-5, mx.float16: 3e-3}.get(dtype, 2e-2))
    rows = kept_packed(tensors_of(a=stored), CONFIG, dtype).take_embedding("a", OUT, 192)(mx.array([3]))
    check_equal(rows.dtype, dtype, "type of the vectors")


# Whole models


def variant(name: str) -> Variant:
    return next(each for each in VARIANTS if each.name == name)


def check_logits(model: Any, oracle: Any, what: str) -> None:
    __tracebackhide__ = True
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(50))
    with mx.stream(mx.cpu):
        expected = oracle(tokens)
    check_close(model(tokens), expected, what, 1e-4)


QUANTIZED = [each.name for each in VARIANTS if each.quantization is not None]


@pytest.mark.parametrize("name", [*QUANTIZED, "qwen3", "llama-mlp-bias"])
def test_task_4_a_packed_model_equals_mlx_lm(name: str, tmp_path: Path) -> None:
    oracle = build(variant(name))
    model = load_model(save(variant(name), oracle, tmp_path), mx.float32, PACKED)
    oracle.set_dtype(mx.float32)
    check_logits(model, oracle, f"logits of {name}")


def test_task_4_chunks_with_a_cache_equal_the_whole(tmp_path: Path) -> None:
    model = load_model(save(variant("qwen3-4bit"), build(variant("qwen3-4bit")), tmp_path), operations=PACKED)
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(51))
    cache, pieces = model.create_kv_cache(), []
    for start, end in ((0, 4), (4, 5), (5, 11)):
        pieces.append(model(tokens[:, start:end], start, cache))
    check_close(mx.concatenate(pieces, axis=1), model(tokens), "logits in chunks", 1e-4)


def test_task_4_every_product_is_made_by_the_function_given(tmp_path: Path) -> None:
    shapes = []

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        shapes.append(weights.shape)
        return quantized_matmul_simple(x, weights)

    oracle = build(variant("qwen3-4bit"))
    model = load_model(save(variant("qwen3-4bit"), oracle, tmp_path), operations=Operations(matmul=matmul))
    check_logits(model, oracle, "logits")
    layer = [(192, 128), (64, 128), (64, 128), (128, 192), (256, 128), (256, 128), (128, 256)]
    check_equal(sorted(shapes), sorted(layer * 3 + [(160, 128)]), "weights of 3 layers and the tied head")


def test_task_4_attention_and_type_are_passed_on(tmp_path: Path) -> None:
    calls = []

    def attention(query, key, value, scale=None, mask=None):  # type: ignore[no-untyped-def]
        calls.append(query.dtype)
        return scaled_dot_product_attention_grouped(query, key, value, scale, mask)

    folder = save(variant("qwen3-8bit-bfloat16"), build(variant("qwen3-8bit-bfloat16")), tmp_path)
    tokens = mx.array([[1, 2, 3]])
    check_equal(
        load_model(folder, operations=PACKED)(tokens).dtype, mx.bfloat16, "type of the logits unless asked"
    )
    model = load_model(folder, mx.float16, Operations(attention=attention, matmul=quantized_matmul_simple))
    check_equal(model(tokens).dtype, mx.float16, "type of the logits")
    check_equal(calls, [mx.float16] * 3, "types of the queries that the attention was given")


def test_task_4_a_model_holds_what_its_file_holds(tmp_path: Path) -> None:
    chosen = dataclasses.replace(
        variant("qwen3-4bit"), changes={"intermediate_size": 2048, "vocab_size": 4096}
    )
    folder = save(chosen, build(chosen), tmp_path)
    file_bytes = (folder / "model.safetensors").stat().st_size

    def matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
        layout = {"group_size": weights.group_size, "bits": weights.bits}
        return mx.quantized_matmul(x, weights.weight, weights.scales, weights.biases, True, **layout)

    with memory_use(reuses_buffers=False) as memory:
        model = load_model(folder, operations=Operations(matmul=matmul))
        mx.eval(model(mx.array([[1, 2, 3]])))
    assert memory.held < 1.2 * file_bytes, (
        f"the model holds {memory.held / file_bytes:.1f} times the bytes of its file: "
        "packed weights were expanded"
    )


@pytest.mark.parametrize("name", ["qwen3-4bit", "llama-mixed-bits"])
def test_task_4_a_layer_too_many_in_the_file_is_refused(name: str, tmp_path: Path) -> None:
    chosen = variant(name)
    fewer = dataclasses.replace(chosen, changes={**chosen.changes, "num_hidden_layers": 2})
    folder = save(chosen, build(chosen), tmp_path)
    save(fewer, build(fewer), tmp_path / "fewer")
    (tmp_path / "fewer" / "config.json").replace(folder / "config.json")
    with check_value_error(name="model.layers.2."):
        load_model(folder, operations=PACKED)


def test_task_4_an_untied_packed_head_is_found_where_the_file_does_not_say(tmp_path: Path) -> None:
    chosen = variant("llama-mixed-bits")
    oracle = build(chosen)
    silent = dataclasses.replace(chosen, changes={"tie_word_embeddings": None})
    check_logits(
        load_model(save(silent, oracle, tmp_path), operations=PACKED), oracle, "logits of an untied model"
    )


# --- task 5 ------------------------------------------------------------------------------------------------


def tensors_and_config(name: str, **changes: Any) -> tuple[ModelConfig, dict[str, mx.array]]:
    chosen = variant(name)
    chosen = dataclasses.replace(chosen, changes={**chosen.changes, **changes})
    return ModelConfig.from_dict(chosen.config), dict(tree_flatten(build(chosen).parameters()))


def bytes_of(tensors: dict[str, mx.array], *starts: str) -> int:
    return sum(x.nbytes for name, x in tensors.items() if name.startswith(starts))


EMBEDDING, HEAD = "model.embed_tokens.", "lm_head."


@pytest.mark.parametrize("name", ["qwen3", "qwen3-4bit", "qwen3-8bit-bfloat16", "qwen2-4bit"])
def test_task_5_a_tied_model_reads_all_of_its_weights(name: str) -> None:
    config, tensors = tensors_and_config(name)
    total = sum(x.nbytes for x in tensors.values())
    floats = sum(x.nbytes for x in tensors.values() if x.dtype != mx.uint32)
    mistakes = {
        "without the table, which is the output head too": total - bytes_of(tensors, EMBEDDING),
        "the table counted twice": total + bytes_of(tensors, EMBEDDING),
        "the packed words alone": total - floats,
        "without the norms": total - sum(x.nbytes for n, x in tensors.items() if "norm" in n),
        "the number of bits": 8 * total,
        "without the scales": total - sum(x.nbytes for n, x in tensors.items() if n.endswith("scales")),
        "without the biases": total - sum(x.nbytes for n, x in tensors.items() if n.endswith("biases")),
    }
    check_equal(decode_bytes_per_token(config, tensors), total, f"bytes for a token of {name}", mistakes)


@pytest.mark.parametrize("name", ["qwen3-untied", "llama-mixed-bits", "llama-mlp-bias"])
def test_task_5_an_untied_model_reads_one_row_of_its_embedding(name: str) -> None:
    config, tensors = tensors_and_config(name)
    total, table = sum(x.nbytes for x in tensors.values()), bytes_of(tensors, EMBEDDING)
    mistakes = {
        "with all rows of the embedding": total,
        "without the row of the embedding": total - table,
        "without the output head": total - table + table // 160 - bytes_of(tensors, HEAD),
    }
    expected = total - table + table // 160
    check_equal(decode_bytes_per_token(config, tensors), expected, f"bytes for a token of {name}", mistakes)


def test_task_5_a_row_is_the_table_over_the_vocabulary() -> None:
    config, tensors = tensors_and_config("qwen3-untied", vocab_size=107)
    rest = sum(x.nbytes for name, x in tensors.items() if not name.startswith(EMBEDDING))
    check_equal(
        decode_bytes_per_token(config, tensors) - rest, 128 * 4, "bytes of the row of a vector of 128"
    )


def test_task_5_a_spare_head_of_a_tied_model_is_not_read() -> None:
    config, tensors = tensors_and_config("qwen3-4bit")
    spare = {f"lm_head.{part}": tensors[f"{EMBEDDING}{part}"] for part in ("weight", "scales", "biases")}
    expected = sum(x.nbytes for x in tensors.values())
    check_equal(decode_bytes_per_token(config, {**tensors, **spare}), expected, "bytes with a spare head")


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied"])
def test_task_5_the_tensors_say_if_it_is_tied_where_the_file_does_not(name: str) -> None:
    config, tensors = tensors_and_config(name)
    silent = dataclasses.replace(config, tie_word_embeddings=None)
    expected = decode_bytes_per_token(config, tensors)
    check_equal(decode_bytes_per_token(silent, tensors), expected, f"bytes for a token of {name}")


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32], ids=str)
def test_task_5_floats_are_counted_in_the_type_they_are_cast_to(dtype: mx.Dtype) -> None:
    config, tensors = tensors_and_config("qwen3-8bit-bfloat16")
    codes = sum(x.nbytes for x in tensors.values() if x.dtype == mx.uint32)
    floats = sum(x.size for x in tensors.values() if x.dtype != mx.uint32)
    actual = decode_bytes_per_token(config, tensors, dtype)
    check_equal(actual, codes + floats * dtype.size, f"bytes for a token in {dtype}")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_task_5_a_token_leaves_keys_and_values_in_every_layer(dtype: mx.Dtype) -> None:
    config = tensors_and_config("qwen3")[0]
    held = 2 * 3 * 2 * 32
    mistakes = {
        "the bytes of the keys alone": held * dtype.size // 2,
        "the bytes of one layer": held * dtype.size // 3,
        "the bytes of a cache for every query head": 3 * held * dtype.size,
        "the number of entries, not of bytes": held,
        "the number of bits": 8 * held * dtype.size,
    }
    check_equal(
        cache_bytes_per_token(config, dtype), held * dtype.size, f"bytes of a token in {dtype}", mistakes
    )


def test_task_5_the_cache_is_float32_unless_asked_otherwise() -> None:
    check_equal(cache_bytes_per_token(tensors_and_config("qwen3")[0]), 2 * 3 * 2 * 32 * 4, "bytes of a token")


LIMITS = {
    "one request": ((6e9, 1_500_000_000), 4.0),
    "eight requests share the weights": ((6e9, 1_500_000_000, 8), 32.0),
    "a cache that is as large as the weights": ((6e9, 1_500_000_000, 1, 1_500_000_000), 2.0),
    "no whole number": ((1e9, 300_000_000, 1, 100_000_000), 2.5),
    "eight caches": ((6e9, 1_000_000_000, 8, 125_000_000), 24.0),
}


@pytest.mark.parametrize(("arguments", "expected"), LIMITS.values(), ids=LIMITS)
def test_task_5_tokens_a_second_at_best(arguments: tuple[Any, ...], expected: float) -> None:
    bandwidth, weights, batch, cache = (*arguments, *(1, 0)[len(arguments) - 2 :])
    mistakes = {
        "the limit of each request: all of them together are asked for": expected / batch,
        "the limit when each request reads the weights anew": bandwidth / (weights + cache),
        "the limit when all requests share one cache": batch * bandwidth / (weights + cache),
        "the limit without the caches": batch * bandwidth / weights,
        "seconds for a token": 1 / expected,
        "the limit in bits": 8 * expected,
    }
    check_equal(bandwidth_limit(*arguments), expected, "tokens per second", mistakes)


def test_task_5_batching_helps_until_the_caches_weigh_as_much() -> None:
    limits = [bandwidth_limit(1e9, 1_000_000, batch, 1_000) for batch in (1, 10, 1000, 10**6)]
    check_equal(
        limits == sorted(limits) and limits[-1] < 1e6, True, "rises, and stays below one cache a token"
    )


@pytest.mark.parametrize(("weight_bytes", "batch_size"), [(0, 1), (-5, 1), (1000, 0), (1000, -1)])
def test_task_5_nothing_to_read_is_an_error(weight_bytes: int, batch_size: int) -> None:
    with check_value_error(weight_bytes=weight_bytes, batch_size=batch_size):
        bandwidth_limit(1e9, weight_bytes, batch_size)


def test_task_5_a_single_byte_is_something_to_read() -> None:
    check_equal(bandwidth_limit(1e9, 1), 1e9, "tokens per second with a single byte of weights")
