"""Week 1 day 1: softmax and linear, attention, many heads."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support.attentions import make_mask
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.heads import head_mistakes, many_heads
from tests.support.oracles import (
    LOW_PRECISION,
    Mistakes,
    attention,
    attention_mistakes,
    causal_mask,
    exact,
    linear_mistakes,
    softmax,
    softmax_mistakes,
)
from tests.support.precision import check_types, short_name, short_types, softmax_tolerance
from tiny_llm import SimpleMultiHeadAttention, linear, scaled_dot_product_attention_simple
from tiny_llm import softmax as tiny_softmax

# --- task 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_task_1_softmax_along_every_axis(axis: int) -> None:
    x = 3 * normal(5, 5, 5, seed=1)  # a cube, so that the wrong axis is no mere error of shapes
    mistakes = softmax_mistakes(exact(x), axis)
    check_close(
        tiny_softmax(x, axis), softmax(exact(x), axis), f"softmax along axis {axis}", mistakes=mistakes
    )


def test_task_1_softmax_of_one_axis() -> None:
    x = normal(7, seed=2)
    check_close(tiny_softmax(x, 0), softmax(exact(x), 0), "softmax of a vector")


def test_task_1_softmax_equals_mlx() -> None:
    x = normal(3, 11, 7, seed=3)
    check_close(tiny_softmax(x, -1), mx.softmax(x, axis=-1), "softmax")


def test_task_1_softmax_of_large_values_does_not_overflow() -> None:
    x = 1000 * normal(3, 7, seed=4)
    mistakes, expected = softmax_mistakes(exact(x), -1), softmax(exact(x))
    what = "softmax of values in the thousands"
    check_close(tiny_softmax(x, -1), expected, what, softmax_tolerance(x), mistakes)


def test_task_1_softmax_of_very_negative_values_does_not_vanish() -> None:
    x = normal(3, 7, seed=5) - 1000
    what = "softmax of values near -1000"
    check_close(tiny_softmax(x, -1), softmax(exact(x)), what, softmax_tolerance(x))


def test_task_1_softmax_of_rows_far_apart() -> None:
    x = normal(3, 7, seed=6) + mx.array([[-500.0], [0.0], [500.0]])
    mistakes = softmax_mistakes(exact(x), -1)
    expected = softmax(exact(x))
    what = "softmax of rows around -500, 0 and 500"
    check_close(tiny_softmax(x, -1), expected, what, softmax_tolerance(x), mistakes)


def test_task_1_softmax_of_a_masked_entry_is_zero() -> None:
    x = mx.where(mx.array([True, False, True, True, False]), normal(3, 5, seed=7), -mx.inf)
    check_close(tiny_softmax(x, -1), softmax(exact(x)), "softmax of rows with -inf")


def test_task_1_softmax_of_a_single_open_entry_is_one() -> None:
    x = mx.array([[-mx.inf, -3.7, -mx.inf]])
    check_close(tiny_softmax(x, -1), np.array([[0.0, 1.0, 0.0]]), "softmax with one entry not masked", 0)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_1_softmax_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    x = 3 * normal(3, 7, seed=8, dtype=dtype)
    actual = tiny_softmax(x, 0)
    check_equal(actual.dtype, dtype, "type of the softmax")
    check_close(actual, softmax(exact(x), 0), "softmax", tolerance)


@short_types
def test_task_1_softmax_of_a_long_row_sums_to_one(dtype: mx.Dtype) -> None:
    x = normal(3, 5003, seed=9, dtype=dtype)
    total = exact(tiny_softmax(x, -1)).sum(axis=-1)
    tolerance = 5e-5 if dtype == mx.float16 else 1e-3
    exponentials = mx.exp(x - mx.max(x, axis=-1, keepdims=True))
    in_its_type = exact(exponentials / mx.sum(exponentials, axis=-1, keepdims=True)).sum(axis=-1)
    name = short_name(dtype)
    mistakes = {f"the sum of a softmax computed in {name}: cast x to float32 first": in_its_type}
    what = f"sum of each softmax over 5003 entries in {name}"
    check_close(mx.array(total), np.ones(3), what, tolerance, mistakes)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 3, 5, 7)])
def test_task_1_linear_takes_any_leading_axes(shape: tuple[int, ...]) -> None:
    x, w = normal(*shape, seed=10), normal(11, 7, seed=11)
    check_close(linear(x, w), exact(x) @ exact(w).T, "linear without bias")


def test_task_1_linear_weight_has_one_row_an_output() -> None:
    x, w = normal(3, 5, seed=12), normal(5, 5, seed=13)
    mistakes = linear_mistakes(exact(x), exact(w))
    check_close(linear(x, w), exact(x) @ exact(w).T, "linear with a square weight", mistakes=mistakes)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)])
def test_task_1_linear_adds_the_bias(shape: tuple[int, ...]) -> None:
    x, w, bias = normal(*shape, seed=14), normal(11, 7, seed=15), normal(11, seed=16)
    check_close(
        linear(x, w, bias),
        exact(x) @ exact(w).T + exact(bias),
        "linear with bias",
        mistakes=linear_mistakes(exact(x), exact(w), exact(bias)),
    )


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_1_linear_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    x, w, bias = (
        normal(3, 7, seed=17, dtype=dtype),
        normal(11, 7, seed=18, dtype=dtype),
        normal(11, seed=19, dtype=dtype),
    )
    actual = linear(x, w, bias)
    check_equal(actual.dtype, dtype, "type of linear")
    check_close(actual, exact(x) @ exact(w).T + exact(bias), "linear", tolerance)


def test_task_1_linear_has_the_type_of_all_its_operands() -> None:
    operands = {"x": normal(3, 7, seed=17), "w": normal(11, 7, seed=18), "bias": normal(11, seed=19)}
    check_types(linear, lambda x, w, bias: x @ w.T + bias, "linear", operands)
    del operands["bias"]
    check_types(linear, lambda x, w: x @ w.T, "linear without bias", operands)


# --- task 2 ------------------------------------------------------------------------------------------------

L, S, D = 5, 11, 7
LEADING = [(), (3,), (2, 3), (2, 1, 3)]
WORDS = ["causal", "Causal", ""]


def qkv(
    *leading: int, L: int = L, S: int = S, D: int = D, dtype: mx.Dtype = mx.float32
) -> tuple[mx.array, mx.array, mx.array]:
    sizes = (L, S, S)
    query, key, value = (normal(*leading, n, D, seed=20 + i, dtype=dtype) for i, n in enumerate(sizes))
    return query, key, value


@pytest.mark.parametrize("leading", LEADING)
def test_task_2_attention_follows_the_formula(leading: tuple[int, ...]) -> None:
    query, key, value = qkv(*leading)
    expected = attention(exact(query), exact(key), exact(value))
    actual = scaled_dot_product_attention_simple(query, key, value)
    check_close(actual, expected, "attention", mistakes=attention_mistakes(*map(exact, (query, key, value))))


def test_task_2_attention_equals_mlx() -> None:
    query, key, value = qkv(2, 3)
    with mx.stream(mx.cpu):
        expected = mx.fast.scaled_dot_product_attention(query, key, value, scale=D**-0.5)
    check_close(scaled_dot_product_attention_simple(query, key, value), expected, "attention")


@pytest.mark.parametrize(
    ("L", "S", "D"), [(1, 11, 7), (5, 1, 7), (1, 1, 7), (11, 5, 7), (7, 7, 7), (5, 11, 1)]
)
def test_task_2_attention_of_every_length(L: int, S: int, D: int) -> None:
    query, key, value = qkv(2, 3, L=L, S=S, D=D)
    expected = attention(exact(query), exact(key), exact(value))
    actual = scaled_dot_product_attention_simple(query, key, value)
    mistakes = attention_mistakes(*map(exact, (query, key, value)))
    check_close(actual, expected, f"attention {L=} {S=} {D=}", mistakes=mistakes)


@pytest.mark.parametrize("scale", [0.3, 2.0, 0.0])
def test_task_2_a_given_scale_replaces_the_default(scale: float) -> None:
    query, key, value = qkv(2, 3)
    expected = attention(exact(query), exact(key), exact(value), scale)
    actual = scaled_dot_product_attention_simple(query, key, value, scale)
    mistakes = attention_mistakes(*map(exact, (query, key, value)), scale)
    check_close(actual, expected, f"attention {scale=}", mistakes=mistakes)


MASK_SHAPES = {
    "alike for all": (L, S),
    "one a batch row": (2, 1, L, S),
    "one a head": (3, L, S),
    "one a row and head": (2, 3, L, S),
    "alike for all queries": (2, 1, 1, S),
}


@pytest.mark.parametrize("shape", MASK_SHAPES.values(), ids=MASK_SHAPES)
def test_task_2_mask_is_added_to_the_scaled_scores(shape: tuple[int, ...]) -> None:
    query, key, value = qkv(2, 3)
    mask = make_mask(*shape, seed=30)
    expected = attention(exact(query), exact(key), exact(value), mask=exact(mask))
    actual = scaled_dot_product_attention_simple(query, key, value, mask=mask)
    mistakes = attention_mistakes(*map(exact, (query, key, value)), mask=exact(mask))
    check_close(actual, expected, f"attention with a mask {shape}", mistakes=mistakes)


def test_task_2_mask_is_added_after_a_given_scale() -> None:
    query, key, value = qkv(2, 3)
    mask = normal(L, S, seed=31)
    expected = attention(exact(query), exact(key), exact(value), 0.1, exact(mask))
    actual = scaled_dot_product_attention_simple(query, key, value, scale=0.1, mask=mask)
    mistakes = attention_mistakes(*map(exact, (query, key, value)), 0.1, exact(mask))
    check_close(actual, expected, "attention with a mask and a scale", mistakes=mistakes)


def test_task_2_masked_keys_are_not_seen() -> None:
    query, key, value = qkv(2, 3)
    mask = causal_mask(L, S)
    expected = attention(exact(query), exact(key), exact(value), mask=mask)
    actual = scaled_dot_product_attention_simple(query, key, value, mask=mx.array(mask, mx.float32))
    mistakes = attention_mistakes(*map(exact, (query, key, value)), mask=mask)
    check_close(actual, expected, "attention with a mask of 0 and -inf", mistakes=mistakes)


def test_task_2_what_a_masked_key_holds_does_not_matter() -> None:
    query, key, value = qkv(2, 3)
    mask = mx.where(mx.arange(S) < 4, 0.0, -mx.inf)[None, :]
    other_key = mx.where(mx.arange(S)[:, None] < 4, key, 1e36 * normal(*key.shape, seed=32))
    other_value = mx.where(mx.arange(S)[:, None] < 4, value, 1e37 * normal(*value.shape, seed=33))
    expected = scaled_dot_product_attention_simple(query, key[..., :4, :], value[..., :4, :])
    actual = scaled_dot_product_attention_simple(query, other_key, other_value, mask=mask)
    check_close(actual, expected, "attention whose last seven keys are masked")


def test_task_2_large_scores_do_not_overflow() -> None:
    query, key, value = qkv(2, 3)
    expected = attention(exact(query) * 30, exact(key) * 30, exact(value))
    actual = scaled_dot_product_attention_simple(query * 30, key * 30, value)
    check_close(actual, expected, "attention with scores in the hundreds", 1e-4)


def test_task_2_attention_has_the_type_of_all_its_operands() -> None:
    operands = dict(zip(("query", "key", "value"), qkv(2), strict=True))
    check_types(scaled_dot_product_attention_simple, attention, "attention", operands)
    check_types(
        lambda *given: scaled_dot_product_attention_simple(*given[:3], mask=given[3]),
        lambda *given: attention(*given[:3], mask=given[3]),
        "attention with a mask",
        {**operands, "mask": normal(L, S, seed=34)},
    )


@pytest.mark.parametrize("mask", WORDS)
def test_task_2_a_word_is_no_mask(mask: Any) -> None:
    with check_value_error():
        scaled_dot_product_attention_simple(*qkv(2), mask=mask)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_attention_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    query, key, value = qkv(2, 3, dtype=dtype)
    mask = normal(L, S, seed=34, dtype=dtype)
    actual = scaled_dot_product_attention_simple(query, key, value, mask=mask)
    check_equal(actual.dtype, dtype, "type of the attention")
    expected = attention(exact(query), exact(key), exact(value), mask=exact(mask))
    check_close(actual, expected, "attention", tolerance)


# --- task 3 ------------------------------------------------------------------------------------------------

B, HEADS, HEAD_DIM = 2, 3, 5
E = HEADS * HEAD_DIM


def weights(dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    """wq, wk, wv and wo."""
    return [(normal(E, E, seed=40 + i) * E**-0.5).astype(dtype) for i in range(4)]


def inputs(L: int = 7, S: int = 11, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    """Query, key and value."""
    return [normal(B, n, E, seed=50 + i, dtype=dtype) for i, n in enumerate((L, S, S))]


def expected_heads(
    matrices: list[mx.array], xs: list[mx.array], num_heads: int, mask: np.ndarray | float = 0.0
) -> np.ndarray:
    return many_heads([*map(exact, matrices)], [*map(exact, xs)], num_heads, mask)


def mistakes_of_heads(
    matrices: list[mx.array], xs: list[mx.array], mask: np.ndarray | float = 0.0
) -> Mistakes:
    return head_mistakes([*map(exact, matrices)], [*map(exact, xs)], HEADS, mask)


@pytest.mark.parametrize(("L", "S"), [(7, 7), (7, 11), (1, 11), (1, 1)])
def test_task_3_heads_attend_on_their_own_slice(L: int, S: int) -> None:
    actual = SimpleMultiHeadAttention(E, HEADS, *weights())(*inputs(L, S))
    expected = expected_heads(weights(), inputs(L, S), HEADS)
    mistakes = mistakes_of_heads(weights(), inputs(L, S))
    check_close(actual, expected, f"many heads {L=} {S=}", mistakes=mistakes)


@pytest.mark.parametrize("num_heads", [1, 5, 15])
def test_task_3_any_number_of_heads(num_heads: int) -> None:
    actual = SimpleMultiHeadAttention(E, num_heads, *weights())(*inputs())
    check_close(actual, expected_heads(weights(), inputs(), num_heads), f"attention with {num_heads} heads")


def test_task_3_equals_mlx() -> None:
    oracle = nn.MultiHeadAttention(E, HEADS)
    layers = (oracle.query_proj, oracle.key_proj, oracle.value_proj, oracle.out_proj)
    for layer, weight in zip(layers, weights(), strict=True):
        layer.weight = weight
    with mx.stream(mx.cpu):
        expected = oracle(*inputs())
    check_close(SimpleMultiHeadAttention(E, HEADS, *weights())(*inputs()), expected, "many heads")


MASKS = {
    "alike for all": (7, 11),
    "one a batch row": (B, 1, 7, 11),
    "one a head": (HEADS, 7, 11),
    "one a row and head": (B, HEADS, 7, 11),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_task_3_mask_is_passed_on(shape: tuple[int, ...]) -> None:
    mask = make_mask(*shape, seed=60)
    actual = SimpleMultiHeadAttention(E, HEADS, *weights())(*inputs(), mask=mask)
    expected = expected_heads(weights(), inputs(), HEADS, exact(mask))
    mistakes = mistakes_of_heads(weights(), inputs(), exact(mask))
    check_close(actual, expected, f"many heads with a mask {shape}", mistakes=mistakes)


def test_task_3_a_masked_key_is_not_seen() -> None:
    mask = causal_mask(7, 11)
    actual = SimpleMultiHeadAttention(E, HEADS, *weights())(*inputs(), mask=mx.array(mask, mx.float32))
    mistakes = mistakes_of_heads(weights(), inputs(), mask)
    expected = expected_heads(weights(), inputs(), HEADS, mask)
    check_close(actual, expected, "many heads with a causal mask", mistakes=mistakes)


def test_task_3_a_mask_of_three_axes_is_one_a_head_in_a_batch_of_as_many_rows() -> None:
    xs = [normal(HEADS, n, E, seed=70 + i) for i, n in enumerate((7, 11, 11))]
    mask = 2 * normal(HEADS, 7, 11, seed=61)
    actual = SimpleMultiHeadAttention(E, HEADS, *weights())(*xs, mask=mask)
    wrong = expected_heads(weights(), xs, HEADS, exact(mask)[:, None])
    name = "many heads with the mask taken as one a batch row: [H, L, S] is broadcast to [B, H, L, S]"
    expected = expected_heads(weights(), xs, HEADS, exact(mask))
    check_close(actual, expected, "many heads with a mask [H, L, S], B = H", mistakes={name: wrong})


def test_task_3_self_attention() -> None:
    x = inputs(7, 7)[0]
    actual = SimpleMultiHeadAttention(E, HEADS, *weights())(x, x, x)
    check_close(actual, expected_heads(weights(), [x, x, x], HEADS), "self-attention")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_3_many_heads_keep_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    matrices, xs = weights(dtype), inputs(dtype=dtype)
    actual = SimpleMultiHeadAttention(E, HEADS, *matrices)(*xs)
    check_equal(actual.dtype, dtype, "type of many heads")
    check_close(actual, expected_heads(matrices, xs, HEADS), "many heads", tolerance)


@pytest.mark.parametrize("mask", WORDS)
def test_task_3_a_word_is_no_mask(mask: Any) -> None:
    with check_value_error():
        SimpleMultiHeadAttention(E, HEADS, *weights())(*inputs(), mask=mask)


def test_task_3_heads_must_divide_the_width() -> None:
    with check_value_error(hidden_size=E, num_heads=4):
        SimpleMultiHeadAttention(E, 4, *weights())
