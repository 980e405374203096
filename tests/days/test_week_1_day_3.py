"""Week 1 day 3: the causal mask and grouped-query attention."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.attentions import (
    Boundary,
    at_every_boundary,
    check_boundary,
    every_mask_shape,
    make_mask,
)
from tests.support.batching import peak_bytes
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.oracles import (
    LOW_PRECISION,
    Array,
    Mistakes,
    causal_mask_mistakes,
    exact,
    grouped_attention,
    grouped_attention_mistakes,
)
from tests.support.oracles import causal_mask as exact_mask
from tests.support.precision import short_types
from tiny_llm import causal_mask, scaled_dot_product_attention_grouped

# --- task 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("L", "S"), [(7, 7), (2, 2), (1, 1), (3, 11), (1, 7), (6, 7), (2, 13)])
def test_task_1_each_query_sees_itself_and_what_came_before(L: int, S: int) -> None:
    check_close(
        causal_mask(L, S),
        exact_mask(L, S),
        f"causal mask of {L} queries and {S} keys",
        mistakes=causal_mask_mistakes(L, S),
    )


@pytest.mark.parametrize("S", [1, 5, 17])
def test_task_1_a_single_query_sees_all_keys(S: int) -> None:
    mistakes = causal_mask_mistakes(1, S)
    check_close(
        causal_mask(1, S), exact_mask(1, S), f"causal mask of one query and {S} keys", mistakes=mistakes
    )


def test_task_1_the_first_query_of_a_prompt_sees_itself_alone() -> None:
    check_equal(
        (causal_mask(5, 5)[0] == 0).tolist(), [True, False, False, False, False], "keys that query 0 sees"
    )


def test_task_1_chunks_stack_to_the_mask_of_the_whole() -> None:
    chunks = [causal_mask(size, end)[:, :end] for size, end in ((4, 4), (1, 5), (6, 11))]
    whole = causal_mask(11, 11)
    for (start, end), chunk in zip(((0, 4), (4, 5), (5, 11)), chunks, strict=True):
        check_close(chunk, whole[start:end, :end], f"mask of the chunk from {start} to {end}")


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_task_1_mask_has_the_type_asked_for(dtype: mx.Dtype) -> None:
    for L in (5, 1):
        mask = causal_mask(L, 7, dtype)
        check_equal(mask.dtype, dtype, f"type of the mask of {L=}")
        check_close(mask, exact_mask(L, 7), f"causal mask of {L=}")


@short_types
def test_task_1_positions_are_whole_numbers_whatever_the_type_of_the_mask(dtype: mx.Dtype) -> None:
    """bfloat16 has no 257 and float16 no 2049."""
    for L, S in ((3, 300), (2, 2051)):
        query_position, key_position = (mx.arange(n, S, dtype=dtype) for n in (S - L, 0))
        mistakes = {
            f"a mask whose positions are counted in {dtype}, where neighbours become one number": mx.where(
                key_position <= query_position[:, None], 0.0, -mx.inf
            )
        }
        check_close(causal_mask(L, S, dtype), exact_mask(L, S), f"mask of {L=}, {S=}", mistakes=mistakes)


def test_task_1_mask_is_float32_unless_asked_otherwise() -> None:
    check_equal(causal_mask(5, 7).dtype, mx.float32, "type of the mask")


@pytest.mark.parametrize(("L", "S"), [(8, 7), (2, 1), (11, 3)])
def test_task_1_more_queries_than_keys_are_refused(L: int, S: int) -> None:
    with check_value_error(L=L, S=S):
        causal_mask(L, S)


# --- task 2 ------------------------------------------------------------------------------------------------

B, H_Q, H, L, S, D = 2, 6, 3, 5, 11, 7
HEADS = {
    "grouped": (6, 3),
    "groups of three": (6, 2),
    "one head each": (3, 3),
    "one head for all": (5, 1),
    "one head for two": (2, 1),
}
heads_of_every_kind = pytest.mark.parametrize(("H_q", "H"), HEADS.values(), ids=HEADS)


def qkv(
    *leading: int, H_q: int = H_Q, H: int = H, L: int = L, S: int = S, dtype: mx.Dtype = mx.float32
) -> tuple[mx.array, mx.array, mx.array]:
    sizes = ((H_q, L), (H, S), (H, S))
    query, key, value = (
        normal(*leading, heads, length, D, seed=10 + i, dtype=dtype)
        for i, (heads, length) in enumerate(sizes)
    )
    return query, key, value


def attention_mistakes(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Array | float = 0.0
) -> Mistakes:
    return grouped_attention_mistakes(exact(query), exact(key), exact(value), scale, mask)


def causal_mistakes(query: mx.array, key: mx.array, value: mx.array, scale: float | None = None) -> Mistakes:
    return grouped_attention_mistakes(exact(query), exact(key), exact(value), scale, is_causal=True)


def expected_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Array | float = 0.0
) -> Array:
    return grouped_attention(exact(query), exact(key), exact(value), scale, mask)


@heads_of_every_kind
def test_task_2_neighbouring_query_heads_share_a_key_head(H_q: int, H: int) -> None:
    query, key, value = qkv(B, H_q=H_q, H=H)
    actual = scaled_dot_product_attention_grouped(query, key, value)
    expected = expected_attention(query, key, value)
    mistakes = attention_mistakes(query, key, value)
    check_close(actual, expected, f"attention of {H_q} query heads over {H} key heads", mistakes=mistakes)


@heads_of_every_kind
def test_task_2_attention_equals_mlx(H_q: int, H: int) -> None:
    query, key, value = qkv(B, H_q=H_q, H=H)
    with mx.stream(mx.cpu):
        expected = mx.fast.scaled_dot_product_attention(query, key, value, scale=D**-0.5)
    check_close(scaled_dot_product_attention_grouped(query, key, value), expected, "grouped attention")


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (3, 1, 2)], ids=str)
def test_task_2_any_leading_axes(leading: tuple[int, ...]) -> None:
    query, key, value = qkv(*leading)
    flat = expected_attention(*(x.reshape(-1, *x.shape[-3:]) for x in (query, key, value)))
    actual = scaled_dot_product_attention_grouped(query, key, value)
    check_close(actual, flat.reshape(query.shape), f"grouped attention with leading axes {leading}")


@pytest.mark.parametrize(("L", "S"), [(7, 7), (5, 11), (1, 11), (1, 1), (2, 7)])
@heads_of_every_kind
def test_task_2_causal_mask_by_name(H_q: int, H: int, L: int, S: int) -> None:
    query, key, value = qkv(B, H_q=H_q, H=H, L=L, S=S)
    actual = scaled_dot_product_attention_grouped(query, key, value, mask="causal")
    expected = expected_attention(query, key, value, mask=exact_mask(L, S))
    mistakes = causal_mistakes(query, key, value)
    check_close(actual, expected, f"causal attention {L=} {S=}", mistakes=mistakes)


def test_task_2_causal_attention_equals_mlx() -> None:
    query, key, value = qkv(B)
    with mx.stream(mx.cpu):
        expected = mx.fast.scaled_dot_product_attention(query, key, value, scale=D**-0.5, mask="causal")
    check_close(
        scaled_dot_product_attention_grouped(query, key, value, mask="causal"),
        expected,
        "causal grouped attention",
    )


def test_task_2_later_keys_do_not_matter_to_a_causal_query() -> None:
    query, key, value = qkv(B, L=7, S=7)
    late = mx.arange(7)[:, None] >= 4
    other_key = mx.where(late, normal(*key.shape, seed=20), key)
    other_value = mx.where(late, normal(*value.shape, seed=21), value)
    actual = scaled_dot_product_attention_grouped(query, other_key, other_value, mask="causal")
    expected = scaled_dot_product_attention_grouped(query, key, value, mask="causal")
    check_close(actual[:, :, :4], expected[:, :, :4], "the first four queries, with other keys after them")


@every_mask_shape(B, H_Q, L, S)
def test_task_2_mask_is_added_to_the_scores(shape: tuple[int, ...]) -> None:
    query, key, value = qkv(B)
    mask = make_mask(*shape, seed=30)
    actual = scaled_dot_product_attention_grouped(query, key, value, mask=mask)
    check_close(
        actual,
        expected_attention(query, key, value, mask=exact(mask)),
        f"grouped attention with a mask {shape}",
        mistakes=attention_mistakes(query, key, value, mask=exact(mask)),
    )


@heads_of_every_kind
def test_task_2_mask_of_each_query_head(H_q: int, H: int) -> None:
    query, key, value = qkv(B, H_q=H_q, H=H)
    mask = mx.where(normal(B, H_q, L, S, seed=31) < 0.5, 0.0, -mx.inf)
    mask[..., 0] = 0.0  # each query sees at least one key
    actual = scaled_dot_product_attention_grouped(query, key, value, mask=mask)
    expected = expected_attention(query, key, value, mask=exact(mask))
    for head in range(H_q):
        check_close(actual[:, head], expected[:, head], f"query head {head} with a mask of its own")


@pytest.mark.parametrize(
    "shape",
    [(3, 1, L, S), (3, H_Q, L, S), (2, 1, H_Q, L, S), (2, 3, H_Q, L, S), (2, 3, 1, L, S), (2, 1, 1, 1, S)],
    ids=str,
)
def test_task_2_mask_of_two_leading_axes(shape: tuple[int, ...]) -> None:
    query, key, value = qkv(2, 3)
    mask = normal(*shape, seed=32)
    whole_mask = np.broadcast_to(exact(mask), (2, 3, H_Q, L, S)).reshape(6, H_Q, L, S)
    expected = expected_attention(
        *(x.reshape(6, *x.shape[-3:]) for x in (query, key, value)), mask=whole_mask
    )
    actual = scaled_dot_product_attention_grouped(query, key, value, mask=mask)
    check_close(
        actual, expected.reshape(query.shape), f"grouped attention of [2, 3, ...] with a mask {shape}"
    )


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_2_a_given_scale_replaces_the_default(scale: float, is_causal: bool) -> None:
    query, key, value = qkv(B)
    mask = exact_mask(L, S) if is_causal else 0.0
    actual = scaled_dot_product_attention_grouped(query, key, value, scale, "causal" if is_causal else None)
    expected = expected_attention(query, key, value, scale, mask)
    mistakes = attention_mistakes(query, key, value, scale, mask)
    check_close(actual, expected, f"grouped attention {scale=}", mistakes=mistakes)


def test_task_2_grouped_equals_repeated_key_heads() -> None:
    query, key, value = qkv(B)
    group_size = H_Q // H
    expected = scaled_dot_product_attention_grouped(
        query, mx.repeat(key, group_size, axis=1), mx.repeat(value, group_size, axis=1)
    )
    check_close(scaled_dot_product_attention_grouped(query, key, value), expected, "grouped attention")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_2_type_is_kept(dtype: mx.Dtype, tolerance: float, is_causal: bool) -> None:
    query, key, value = qkv(B, dtype=dtype)
    actual = scaled_dot_product_attention_grouped(query, key, value, mask="causal" if is_causal else None)
    check_equal(actual.dtype, dtype, "type of grouped attention")
    mask = exact_mask(L, S) if is_causal else 0.0
    check_close(actual, expected_attention(query, key, value, mask=mask), "grouped attention", tolerance)


@pytest.mark.parametrize(("H_q", "H"), [(5, 3), (3, 6), (7, 2)])
def test_task_2_uneven_groups_are_refused(H_q: int, H: int) -> None:
    with check_value_error(H_q=H_q, H=H):
        scaled_dot_product_attention_grouped(*qkv(B, H_q=H_q, H=H))


@pytest.mark.parametrize("mask", ["Causal", "causal_mask", "full"])
def test_task_2_a_word_that_is_no_mask_is_refused(mask: Any) -> None:
    with check_value_error(mask=mask):
        scaled_dot_product_attention_grouped(*qkv(B), mask=mask)


@at_every_boundary
def test_task_2_boundaries_of_attention(boundary: Boundary) -> None:
    check_boundary(scaled_dot_product_attention_grouped, boundary)


def test_task_2_keys_and_values_are_not_copied_for_each_query_head() -> None:
    query, key, value = (
        normal(1, heads, length, 64, seed=60) for heads, length in ((8, 1), (2, 4096), (2, 4096))
    )
    mx.eval(query, key, value)
    peak = peak_bytes(lambda: mx.eval(scaled_dot_product_attention_grouped(query, key, value)))
    if peak > key.nbytes:
        fail(
            f"attention of 8 query heads to 2 key heads held {peak / key.nbytes:.1f} times the keys.",
            "They were copied for each query head: broadcast them, with expand_dims and not with repeat.",
        )
