"""Week 2, day 4: FlashAttention."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

from tests.support.attentions import (
    Boundary,
    at_every_boundary,
    check_boundary,
    check_short_scores,
    every_mask_shape,
    make_mask,
)
from tests.support.batching import peak_bytes
from tests.support.blocks import absorb
from tests.support.causes import NOT_TO_BE_READ
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import Variant, build, save
from tests.support.oracles import (
    Array,
    Mistakes,
    attention,
    exact,
    grouped_attention,
    grouped_attention_mistakes,
    softmax,
)
from tests.support.oracles import causal_mask as exact_mask
from tests.support.passes import PASSES
from tests.support.precision import check_types
from tiny_llm import flash_attention, scaled_dot_product_attention_grouped
from tiny_llm.model.loader import load_model
from tiny_llm.model.operations import Operations
from tiny_llm.ops.attention import Mask
from tiny_llm.ops.flash_attention import (
    SoftmaxState,
    absorb_block,
    attend_queries,
    block_mask,
    empty_state,
    visible_blocks,
    weighted_average,
)

# --- task 1 ------------------------------------------------------------------------------------------------

ROWS, KEYS, DIM = 5, 11, 7
PIECES = {"one block": (11,), "even": (4, 4, 3), "uneven": (2, 7, 1, 1), "key by key": (1,) * KEYS}
in_pieces = pytest.mark.parametrize("sizes", PIECES.values(), ids=PIECES)


def scores_and_values(*leading: int, seed: int = 0, spread: float = 3.0) -> tuple[mx.array, mx.array]:
    return (
        spread * normal(*leading, ROWS, KEYS, seed=seed),
        normal(*leading, KEYS, DIM, seed=seed + 1),
    )


def absorb_all(scores: mx.array, value: mx.array, sizes: Sequence[int]) -> SoftmaxState:
    """The state after blocks of these sizes."""
    state, start = empty_state(scores.shape[:-1], value.shape[-1]), 0
    for size in sizes:
        state = absorb_block(state, scores[..., start : start + size], value[..., start : start + size, :])
        start += size
    return state


def block_by_block(scores: Array, value: Array, sizes: Sequence[int]) -> list[tuple[Array, Array]]:
    """Each block's exponentials under its own maximum, and its values."""
    ends = np.cumsum(sizes)
    parts = [
        (scores[..., end - n : end], value[..., end - n : end, :]) for end, n in zip(ends, sizes, strict=True)
    ]
    return [(np.exp(s - s.max(axis=-1, keepdims=True)), v) for s, v in parts]


def own_maxima(scores: Array, value: Array, sizes: Sequence[int]) -> Array:
    blocks = block_by_block(scores, value, sizes)
    return sum(e @ v for e, v in blocks) / sum(e.sum(axis=-1, keepdims=True) for e, _ in blocks)


def summed_softmaxes(scores: Array, value: Array, sizes: Sequence[int]) -> Array:
    blocks = block_by_block(scores, value, sizes)
    return np.sum([e / e.sum(axis=-1, keepdims=True) @ v for e, v in blocks], axis=0)


def softmax_mistakes(scores: mx.array, value: mx.array, sizes: Sequence[int]) -> Mistakes:
    """Known mistakes with a softmax in pieces, by what they give."""
    s, v = exact(scores), exact(value)
    blocks = np.split(np.arange(s.shape[-1]), np.cumsum(sizes)[:-1])

    def in_blocks(**mistake: Any) -> Array:
        _, total, weighted = absorb(s, v, blocks, **mistake)
        return weighted / total

    kinds: dict[str, dict[str, Any]] = {
        "not shrinking the old total and values when the maximum rises": {
            "total_shrinks": 0,
            "weighted_shrinks": 0,
        },
        "not shrinking the old total when the maximum rises": {"total_shrinks": 0},
        "not shrinking the old values when the maximum rises": {"weighted_shrinks": 0},
        "exp(new maximum - old maximum): the shrinking with the wrong sign": {
            "total_shrinks": -1,
            "weighted_shrinks": -1,
        },
        "-inf - -inf in a row whose keys are all hidden so far": {"guards": False},
    }
    return {
        **{f"what comes of {name}": partial(in_blocks, **mistake) for name, mistake in kinds.items()},
        "what comes of each block's own maximum, never made one": lambda: own_maxima(s, v, sizes),
        "the sum of one softmax a block": lambda: summed_softmaxes(s, v, sizes),
        "the last block alone, as when the new maximum is not stored": lambda: (
            softmax(s[..., -sizes[-1] :]) @ v[..., -sizes[-1] :, :]
        ),
        "the weighted sum, not divided by the total": lambda: np.exp(s - s.max(axis=-1, keepdims=True)) @ v,
    }


def check_average(scores: mx.array, value: mx.array, sizes: Sequence[int], what: str) -> None:
    """Compare the softmax in blocks of these sizes with that of the whole."""
    __tracebackhide__ = True
    actual = weighted_average(absorb_all(scores, value, sizes))
    expected = softmax(exact(scores)) @ exact(value)
    check_close(actual, expected, what, mistakes=softmax_mistakes(scores, value, sizes))


@in_pieces
def test_task_1_pieces_give_the_softmax_of_the_whole(sizes: tuple[int, ...]) -> None:
    check_average(*scores_and_values(2, 3), sizes, f"average of values in blocks of {sizes}")


def test_task_1_the_empty_state_has_seen_nothing() -> None:
    state = empty_state((2, 3, ROWS), DIM)
    check_close(state.maximum, np.full((2, 3, ROWS, 1), -np.inf), "maximum of the empty state")
    check_close(state.total, np.zeros((2, 3, ROWS, 1)), "total of the empty state")
    check_close(state.weighted, np.zeros((2, 3, ROWS, DIM)), "weighted values of the empty state")
    types = [state.maximum.dtype, state.total.dtype, state.weighted.dtype]
    check_equal(types, [mx.float32] * 3, "types of the empty state")


@in_pieces
def test_task_1_the_state_says_what_was_seen(sizes: tuple[int, ...]) -> None:
    scores, value = scores_and_values(2)
    state, s = absorb_all(scores, value, sizes), exact(scores)
    maximum = s.max(axis=-1, keepdims=True)
    last = s[..., -sizes[-1] :].max(axis=-1, keepdims=True)
    check_close(state.maximum, maximum, "maximum", mistakes={"the maximum of the last block": last})
    check_close(state.total, np.exp(s - maximum).sum(axis=-1, keepdims=True), "total")
    check_close(state.weighted, np.exp(s - maximum) @ exact(value), "weighted values")


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_task_1_the_maximum_may_rise_in_every_block_or_never(order: int) -> None:
    scores, value = scores_and_values(3)
    check_average(mx.sort(scores, axis=-1)[..., ::order], value, (3, 4, 4), "average of values")


@pytest.mark.parametrize("lift", [0, -50_000])
def test_task_1_large_scores_do_not_overflow(lift: int) -> None:
    scores, value = scores_and_values(2)
    scores = mx.round(300 * scores) + 1000 * mx.arange(KEYS) + lift
    check_average(scores, value, (4, 4, 3), f"average of values with scores up to {12000 + lift}")


@pytest.mark.parametrize("hidden", [(0, 4), (4, 8), (8, 11), (0, 8), (4, 11)], ids=str)
def test_task_1_a_block_may_hide_all_of_a_row(hidden: tuple[int, int]) -> None:
    scores, value = scores_and_values(2)
    is_hidden = (mx.arange(KEYS) >= hidden[0]) & (mx.arange(KEYS) < hidden[1])
    is_hidden = is_hidden & (mx.arange(ROWS)[:, None] % 2 == 0)
    what = f"average of values, keys {hidden[0]} to {hidden[1] - 1} hidden from rows 0, 2 and 4"
    check_average(mx.where(is_hidden, -mx.inf, scores), value, (4, 4, 3), what)


def test_task_1_a_row_that_saw_nothing_is_still_empty() -> None:
    scores, value = scores_and_values()
    scores = mx.where(mx.arange(ROWS)[:, None] == 2, -mx.inf, scores)
    state = absorb_all(scores, value, (4, 7))
    found = [state.maximum[2].tolist(), state.total[2].tolist(), state.weighted[2].tolist()]
    check_equal(found, [[-np.inf], [0.0], [0.0] * DIM], "maximum, total and values of a row without keys")
    is_nan = mx.isnan(weighted_average(state)).all(axis=-1).tolist()
    check_equal(is_nan, [False, False, True, False, False], "rows whose average is nan: 0 / 0")


def test_task_1_the_old_state_stays_as_it_is() -> None:
    scores, value = scores_and_values()
    before = absorb_all(scores[:, :4], value[:4], (4,))
    held = [np.array(x) for x in (before.maximum, before.total, before.weighted)]
    absorb_block(before, scores[:, 4:], value[4:])
    for name, old in zip(("maximum", "total", "weighted"), held, strict=True):
        check_close(getattr(before, name), old, f"{name} of the state before", tolerance=0)


def test_task_1_values_are_not_those_of_the_dimensions() -> None:
    scores, value = scores_and_values(2)
    state = absorb_all(scores, value[..., :3], (4, 4, 3))
    check_equal(weighted_average(state).shape, (2, ROWS, 3), "shape of the average of values of 3 dimensions")


# --- task 2 ------------------------------------------------------------------------------------------------


def visible_by_hand(queries: range, L: int, S: int, size: int, is_causal: bool) -> list[range]:
    """Key by key: those that some query of the block sees, in blocks from the first key."""
    mask = exact_mask(L, S) if is_causal else np.zeros((L, S))
    seen = [j for j in range(S) if (mask[queries.start : queries.stop, j] == 0).any()]
    return [range(b[0], b[-1] + 1) for b in (seen[i : i + size] for i in range(0, len(seen), size))]


def blocks_mistakes(queries: range, L: int, S: int, size: int) -> dict[str, list[range]]:
    def cut(stop: int) -> list[range]:
        return [range(start, min(start + size, stop)) for start in range(0, stop, size)]

    end = S - L + queries.stop
    return {
        "the blocks of all keys: those above the diagonal are not skipped": cut(S),
        "the blocks when the queries are the first positions, not the last": cut(queries.stop),
        "the blocks up to the first query, not the last one": cut(S - L + queries.start + 1),
        "the blocks up to the last query, without that query's own key": cut(end - 1),
        "the blocks up to the key after the last query": cut(end + 1),
        "the visible blocks without the last one": cut(end)[:-1],
        "the visible blocks without the last one, which is not full": [b for b in cut(end) if len(b) == size],
    }


SIZES = [(7, 7), (13, 13), (5, 11), (1, 11), (1, 1), (6, 7), (3, 29), (17, 17)]
sizes_of_every_kind = pytest.mark.parametrize(("L", "S"), SIZES)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "all keys"])
@pytest.mark.parametrize("size", [1, 3, 4, 64])
@sizes_of_every_kind
def test_task_2_causal_blocks_end_at_the_last_query_and_others_at_the_last_key(
    L: int, S: int, size: int, is_causal: bool
) -> None:
    for queries in (range(start, min(start + 3, L)) for start in range(0, L, 3)):
        blocks = list(visible_blocks(queries, L, S, size, is_causal))
        what = f"key blocks of {size} for queries {queries.start} to {queries.stop - 1} of {L=} {S=}"
        expected = visible_by_hand(queries, L, S, size, is_causal)
        mistakes = blocks_mistakes(queries, L, S, size)
        check_equal(blocks, expected, f"{'causal ' if is_causal else ''}{what}", mistakes)


def test_task_2_blocks_of_a_long_cache_are_not_searched_for() -> None:
    blocks = visible_blocks(range(0, 1), 1, 10**6, 1000, True)
    check_equal(len(list(blocks)), 1000, "key blocks of one query and a million keys")
    blocks = visible_blocks(range(128, 256), 10**12, 10**12, 64, True)
    check_equal(list(blocks)[-1], range(192, 256), "last key block of queries 128 to 255 of 10^12")


def mask_mistakes(L: int, S: int, queries: range, keys: range) -> Mistakes:
    """What wrong ideas of the place of a block give, by what they are."""
    shape = rows, columns = len(queries), len(keys)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]

    def hidden(first_query: int, first_key: int) -> Array:
        return np.where(first_key + j <= first_query + i, 0.0, -np.inf)

    first = S - L + queries.start
    places = {
        "the mask of a block whose queries are the first positions, not the last": (
            queries.start,
            keys.start,
        ),
        "the triangle from the block's own corner": (0, 0),
        "a mask that leaves out where the keys start": (first, 0),
        "a mask that leaves out where the queries start": (S - L, keys.start),
        "a mask that hides each query from itself": (first - 1, keys.start),
        "a mask that shows each query the key after it": (first + 1, keys.start),
    }
    return {
        "a mask that hides nothing": lambda: np.zeros(shape),
        "the causal mask of the block by itself, wherever it lies": lambda: exact_mask(rows, max(shape))[
            :, :columns
        ],
        **{name: partial(hidden, *place) for name, place in places.items()},
        "a mask of 1 and 0, not of 0 and -inf": lambda: 1 + np.maximum(hidden(first, keys.start), -1),
    }


@sizes_of_every_kind
def test_task_2_causal_mask_of_a_block(L: int, S: int) -> None:
    whole = exact_mask(L, S)
    for queries in (range(start, min(start + 3, L)) for start in range(0, L, 3)):
        for keys in (range(start, min(start + 4, S)) for start in range(0, S, 4)):
            expected = whole[queries.start : queries.stop, keys.start : keys.stop]
            actual = block_mask("causal", queries, keys, L, S)
            what = f"causal mask of {queries} and {keys}, {L=} {S=}"
            if actual is not None:
                mistakes = mask_mistakes(L, S, queries, keys)
                check_close(mx.broadcast_to(actual, expected.shape), expected, what, mistakes=mistakes)
            hides_nothing = bool((expected == 0).all())
            assert (actual is None) == hides_nothing, (
                f"{what}: None, if and only if it hides nothing; {hides_nothing=}, got {actual}"
            )


def test_task_2_no_mask_hides_nothing() -> None:
    assert block_mask(None, range(0, 3), range(0, 4), 5, 11) is None, "no mask: expected None"


def test_task_2_a_word_that_is_no_mask_is_refused() -> None:
    wrong: Any = "Causal"
    with check_value_error(mask=wrong):
        block_mask(wrong, range(0, 3), range(0, 4), 5, 11)


FULL_MASKS = [(5, 11), (1, 5, 11), (3, 5, 11), (2, 3, 1, 5, 11)]
BROADCAST_MASKS = [(1, 11), (3, 1, 11), (5, 1), (2, 3, 5, 1), (11,), (1,), (1, 1), ()]


@pytest.mark.parametrize("shape", [*FULL_MASKS, *BROADCAST_MASKS], ids=str)
def test_task_2_part_of_an_additive_mask_in_which_an_axis_alike_for_all_may_stay(
    shape: tuple[int, ...],
) -> None:
    mask = normal(*shape, seed=30)
    whole = np.broadcast_to(exact(mask), shape if shape in FULL_MASKS else (2, 3, 5, 11))
    for queries, keys in ((range(0, 3), range(4, 8)), (range(3, 5), range(8, 11))):
        part = block_mask(mask, queries, keys, 5, 11)
        expected = whole[..., queries.start : queries.stop, keys.start : keys.stop]
        assert isinstance(part, mx.array), f"part of an additive mask: expected an array, got {part}"
        actual = part if shape in FULL_MASKS else mx.broadcast_to(part, expected.shape)
        check_close(actual, expected, f"part of a mask {shape} at {queries} and {keys}", tolerance=0)


# --- task 3 ------------------------------------------------------------------------------------------------


def block_inputs(*leading: int, L: int = 5, S: int = 11, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    return [normal(*leading, n, DIM, seed=40 + i, dtype=dtype) for i, n in enumerate((L, S, S))]


def expected_rows(inputs: Sequence[mx.array], queries: range, mask: Array | float = 0.0) -> Array:
    """Attention with the scale 1 of some of the queries."""
    query, key, value = map(exact, inputs)
    scores = np.einsum("...ld,...sd->...ls", query, key) + mask
    return (softmax(scores) @ value)[..., queries.start : queries.stop, :]


def rows_mistakes(
    inputs: Sequence[mx.array], queries: range, key_block: int, mask: Array | float = 0.0
) -> Mistakes:
    """Known mistakes with some of the queries, by what they give."""

    def rows_of(*arguments: Any) -> Array:
        return attention(*arguments)[..., queries.start : queries.stop, :]

    query, key, value = map(exact, inputs)
    last = (key.shape[-2] - 1) // key_block * key_block
    known: dict[str, tuple[Any, ...]] = {
        "attention scaled once more: the query comes with its scale": (query, key, value, None, mask),
        "attention without the mask": (query, key, value, 1.0),
        "attention that averages the keys, not the values": (query, key, key, 1.0, mask),
    }
    if last:
        masks = np.broadcast_to(mask, (*query.shape[:-1], key.shape[-2]))
        pieces = {"to the last block of keys alone": slice(last, None)}
        pieces["without the last block of keys"] = slice(last)
        for name, part in pieces.items():
            keys, values = key[..., part, :], value[..., part, :]
            known[f"attention {name}"] = (query, keys, values, 1.0, masks[..., part])
    return {name: partial(rows_of, *arguments) for name, arguments in known.items()}


def check_rows(
    inputs: Sequence[mx.array],
    mask: mx.array | Literal["causal"] | None,
    queries: range,
    key_block: int,
    what: str,
) -> None:
    """Compare attention of some of the queries with the formula."""
    __tracebackhide__ = True
    L, S = inputs[0].shape[-2], inputs[1].shape[-2]
    added = exact_mask(L, S) if isinstance(mask, str) else 0.0 if mask is None else exact(mask)
    actual = attend_queries(*inputs, mask, queries, key_block)
    mistakes = rows_mistakes(inputs, queries, key_block, added)
    check_close(actual, expected_rows(inputs, queries, added), what, mistakes=mistakes)


@pytest.mark.parametrize("key_block", [1, 3, 4, 11, 64])
@pytest.mark.parametrize("queries", [range(0, 5), range(0, 2), range(3, 5), range(2, 3)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_3_rows_of_attention(queries: range, key_block: int, is_causal: bool) -> None:
    what = f"attention of queries {queries.start} to {queries.stop - 1}, key blocks of {key_block}"
    check_rows(block_inputs(2, 3), "causal" if is_causal else None, queries, key_block, what)


def test_task_3_every_row_of_a_prompt() -> None:
    for queries in (range(start, min(start + 3, 13)) for start in range(0, 13, 3)):
        check_rows(block_inputs(L=13, S=13), "causal", queries, 4, f"causal attention of {queries} of 13")


@pytest.mark.parametrize("shape", [(5, 11), (3, 5, 11), (2, 1, 1, 11), (3, 5, 1), (11,)], ids=str)
def test_task_3_mask_is_added_to_the_scores(shape: tuple[int, ...]) -> None:
    for queries in (range(0, 3), range(3, 5)):
        what = f"attention of {queries} with a mask {shape}"
        check_rows(block_inputs(2, 3), 2 * normal(*shape, seed=50), queries, 4, what)


def test_task_3_keys_alike_for_a_group_are_broadcast() -> None:
    query, (_, key, value) = normal(2, 3, 4, 5, DIM, seed=45), block_inputs(2, 3, 1)
    mask = normal(3, 4, 5, 11, seed=51)
    actual = attend_queries(query, key, value, mask, range(1, 4), 4)
    expected = expected_rows([query, key, value], range(1, 4), exact(mask))
    check_close(actual, expected, "attention of 4 query heads that share a key head")


def test_task_3_keys_beyond_the_last_query_are_never_read() -> None:
    query, key, value = block_inputs(L=13, S=13)
    late = mx.arange(13)[:, None] >= 6
    poisoned = [query, *(mx.where(late, mx.array(NOT_TO_BE_READ), x) for x in (key, value))]
    actual = attend_queries(*poisoned, "causal", range(3, 6), 3)
    expected = expected_rows([query, key, value], range(3, 6), exact_mask(13, 13))
    check_close(actual, expected, "queries 3 to 5, nan in the keys from 6 on: their blocks are skipped")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_3_sums_are_float32(dtype: mx.Dtype) -> None:
    inputs = block_inputs(2, L=3, S=301, dtype=dtype)
    actual = attend_queries(*inputs, None, range(0, 3), 8)
    check_equal(actual.dtype, mx.float32, "type of a block's attention")
    check_close(actual, expected_rows(inputs, range(0, 3)), f"attention of {dtype} inputs, summed in float32")


def test_task_3_one_block_of_scores_at_a_time(on_cpu: None) -> None:
    inputs = block_inputs(L=64, S=16384)
    mx.eval(inputs)
    peak, all_scores = (
        peak_bytes(lambda: mx.eval(attend_queries(*inputs, None, range(64), 256))),
        4 * 64 * 16384,
    )
    what = f"the scores of all 16384 keys are {all_scores} bytes"
    assert peak <= all_scores / 4, f"{peak} bytes at once for key blocks of 256; {what}"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_task_3_a_block_begins_when_the_one_before_is_summed_up(dtype: mx.Dtype, on_cpu: None) -> None:
    inputs = block_inputs(L=64, S=16384, dtype=dtype)
    mx.eval(inputs)
    peak = peak_bytes(lambda: mx.eval(attend_queries(*inputs, None, range(64), 256)))
    check_blocks_at_once(peak, 4 * 64 * 256, 9, f"key blocks of {dtype}, each cut before it is cast,")


def check_blocks_at_once(peak: int, block: int, most: int, what: str) -> None:
    """Fail if more was held at once than so many blocks of scores."""
    __tracebackhide__ = True
    if peak > most * block:
        fail(
            f"{peak / block:.1f} times one block's scores were held at once, and {most} times is enough.",
            f"Are the {what} in order? MLX begins one when it can, unless mx.depends says what comes before.",
        )


# --- task 4 ------------------------------------------------------------------------------------------------

B, H_Q, H, L, S, D = 2, 6, 3, 5, 11, 7
HEADS = {"grouped": (6, 3), "groups of three": (6, 2), "one head each": (3, 3), "one head for all": (5, 1)}
heads_of_every_kind = pytest.mark.parametrize(("H_q", "H"), HEADS.values(), ids=HEADS)
BLOCKS = {"3 x 4": (3, 4), "4 x 3": (4, 3), "1 x 1": (1, 1), "5 x 11": (5, 11), "one block": (128, 512)}
blocks_of_every_kind = pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)


def qkv(
    *leading: int,
    H_q: int = H_Q,
    H: int = H,
    L: int = L,
    S: int = S,
    D: int = D,
    dtype: mx.Dtype = mx.float32,
) -> list[mx.array]:
    sizes = ((H_q, L), (H, S), (H, S))
    return [normal(*leading, heads, n, D, seed=60 + i, dtype=dtype) for i, (heads, n) in enumerate(sizes)]


def check_attention(
    actual: mx.array,
    inputs: Sequence[mx.array],
    what: str,
    scale: float | None = None,
    mask: Array | float = 0.0,
    is_causal: bool = False,
    tolerance: float = 1e-5,
) -> None:
    """Fail unless it is the attention of [B, H_q, L, D], by the formula."""
    __tracebackhide__ = True
    query, key, value = map(exact, inputs)
    if is_causal:
        mask = exact_mask(query.shape[2], key.shape[2])
    mistakes = grouped_attention_mistakes(query, key, value, scale, mask, is_causal)
    check_close(actual, grouped_attention(query, key, value, scale, mask), what, tolerance, mistakes)


@blocks_of_every_kind
@heads_of_every_kind
def test_task_4_grouped_heads(H_q: int, H: int, blocks: tuple[int, int]) -> None:
    inputs = qkv(B, H_q=H_q, H=H)
    actual = flash_attention(*inputs, None, None, *blocks)
    check_attention(actual, inputs, f"attention of {H_q} query heads over {H} key heads")


@blocks_of_every_kind
@pytest.mark.parametrize(("L", "S"), [(13, 13), (5, 11), (1, 11), (1, 1), (2, 7), (6, 31)])
def test_task_4_causal_attention(L: int, S: int, blocks: tuple[int, int]) -> None:
    inputs = qkv(B, L=L, S=S)
    actual = flash_attention(*inputs, None, "causal", *blocks)
    check_attention(actual, inputs, f"causal attention {L=} {S=}, blocks {blocks}", is_causal=True)


@pytest.mark.parametrize(("L", "S"), [(263, 263), (131, 1031), (1, 1031), (257, 521), (128, 512), (129, 513)])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_4_blocks_of_the_default_sizes(L: int, S: int, is_causal: bool) -> None:
    inputs = qkv(1, H_q=2, H=1, L=L, S=S)
    actual = flash_attention(*inputs, mask="causal" if is_causal else None)
    expected = scaled_dot_product_attention_grouped(*inputs, mask="causal" if is_causal else None)
    check_close(actual, expected, f"attention {L=} {S=} against the plain version")


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (3, 1, 2)], ids=str)
def test_task_4_any_leading_axes(leading: tuple[int, ...]) -> None:
    inputs = qkv(*leading)
    flat = [x.reshape(-1, *x.shape[-3:]) for x in inputs]
    expected = grouped_attention(*map(exact, flat)).reshape(inputs[0].shape)
    actual = flash_attention(*inputs, None, None, 3, 4)
    check_close(actual, expected, f"attention with leading axes {leading}")


@every_mask_shape(B, H_Q, L, S)
def test_task_4_mask_is_added_to_the_scores(shape: tuple[int, ...]) -> None:
    inputs, mask = qkv(B), make_mask(*shape, seed=70)
    actual = flash_attention(*inputs, None, mask, 3, 4)
    check_attention(actual, inputs, f"attention with a mask {shape}", mask=exact(mask))


@heads_of_every_kind
def test_task_4_mask_of_each_query_head(H_q: int, H: int) -> None:
    inputs = qkv(B, H_q=H_q, H=H)
    mask = mx.where(normal(B, H_q, L, S, seed=71) < 0.5, 0.0, -mx.inf)
    mask[..., 0] = 0.0  # each query sees at least one key
    actual = flash_attention(*inputs, None, mask, 3, 4)
    check_attention(actual, inputs, "attention with a mask for each head", mask=exact(mask))


@pytest.mark.parametrize("visible", [range(0, 1), range(10, 11), range(5, 7)], ids=str)
def test_task_4_rows_hidden_in_whole_blocks(visible: range) -> None:
    inputs, keys = qkv(B), mx.arange(S)
    is_seen = (keys >= visible.start) & (keys < visible.stop)
    mask = mx.where(is_seen | (mx.arange(L)[:, None] % 2 == 1), 0.0, -mx.inf)
    actual = flash_attention(*inputs, None, mask, 3, 4)
    what = f"attention, rows 0, 2 and 4 see keys {visible.start} to {visible.stop - 1} alone"
    check_attention(actual, inputs, what, mask=exact(mask))


def test_task_4_a_row_hidden_everywhere_is_nan_as_in_the_plain_version() -> None:
    inputs, mask = qkv(B), mx.where(mx.arange(L)[:, None] == 2, -mx.inf, mx.zeros((L, S)))
    plain = scaled_dot_product_attention_grouped(*inputs, mask=mask)
    actual = flash_attention(*inputs, None, mask, 3, 4)
    for name, output in (("plain", plain), ("flash", actual)):
        rows = mx.isnan(output).all(axis=(0, 1, 3)).tolist()
        check_equal(rows, [False, False, True, False, False], f"queries whose {name} attention is nan")
    seen = mx.array([0, 1, 3, 4])
    check_close(actual[:, :, seen], plain[:, :, seen], "attention of the other queries")


@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
@pytest.mark.parametrize("factor", [4, 64])
def test_task_4_large_logits(factor: int, is_causal: bool) -> None:
    inputs = qkv(B, L=13, S=29, D=16)
    # Whole numbers, so that the scores are exact in any order of summation.
    inputs = [mx.round(factor * inputs[0]), mx.round(8 * inputs[1]), inputs[2]]
    actual = flash_attention(*inputs, None, "causal" if is_causal else None, 3, 4)
    check_attention(actual, inputs, "attention with scores in the hundreds", is_causal=is_causal)


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_4_a_given_scale_replaces_the_default(scale: float, is_causal: bool) -> None:
    inputs = qkv(B)
    actual = flash_attention(*inputs, scale, "causal" if is_causal else None, 3, 4)
    check_attention(actual, inputs, f"attention {scale=}", scale, is_causal=is_causal)


@pytest.mark.parametrize("blocks", [(128, 512), (2, 4)])
@at_every_boundary
def test_task_4_boundaries_of_attention(boundary: Boundary, blocks: tuple[int, int]) -> None:
    check_boundary(partial(flash_attention, query_block=blocks[0], key_block=blocks[1]), boundary)


@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float16, 1e-3), (mx.bfloat16, 8e-3)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_task_4_type_is_kept_and_sums_are_float32(dtype: mx.Dtype, tolerance: float, is_causal: bool) -> None:
    inputs = qkv(B, S=211, dtype=dtype)
    actual = flash_attention(*inputs, None, "causal" if is_causal else None, 3, 8)
    check_equal(actual.dtype, dtype, "type of the attention")
    what = "attention with sums in float32, rounded once at the end"
    check_attention(actual, inputs, what, is_causal=is_causal, tolerance=tolerance)


@pytest.mark.parametrize("L", [1, 8])
def test_task_4_large_scores_in_short_types(L: int) -> None:
    check_short_scores(flash_attention, L)


def test_task_4_the_type_is_that_of_the_query() -> None:
    operands = dict(zip(("query", "key", "value"), qkv(B), strict=True))
    check_types(flash_attention, grouped_attention, "attention", operands, keeps="query")


def test_task_4_a_mask_in_float32_does_not_change_the_type() -> None:
    inputs = qkv(B, dtype=mx.bfloat16)
    actual = flash_attention(*inputs, mask=normal(L, S, seed=72))
    check_equal(actual.dtype, mx.bfloat16, "type of the attention")


@pytest.mark.parametrize(("H_q", "H"), [(5, 3), (3, 6), (7, 2)])
def test_task_4_uneven_groups_are_refused(H_q: int, H: int) -> None:
    with check_value_error(H_q=H_q, H=H):
        flash_attention(*qkv(B, H_q=H_q, H=H))


def test_task_4_more_causal_queries_than_keys_are_refused() -> None:
    with check_value_error(L=8, S=7):
        flash_attention(*qkv(B, L=8, S=7), mask="causal")
    inputs = qkv(B, L=8, S=7)
    check_attention(flash_attention(*inputs, None, None, 3, 4), inputs, "attention of 8 queries to 7 keys")


@pytest.mark.parametrize("mask", ["Causal", "causal_mask", "full"])
def test_task_4_a_word_that_is_no_mask_is_refused(mask: Any) -> None:
    with check_value_error(mask=mask):
        flash_attention(*qkv(B), mask=mask)


@pytest.mark.parametrize(
    "sizes", [(L, S + 1), (L, S - 1), (L - 1, S), (B + 1, 1, L, S), (2, 1, 1, L, S)], ids=str
)
def test_task_4_a_mask_that_does_not_fit_is_refused(sizes: tuple[int, ...]) -> None:
    with check_value_error(mask=sizes):
        flash_attention(*qkv(B), mask=normal(*sizes, seed=73))


@pytest.mark.parametrize("blocks", [(0, 4), (3, 0), (-1, 4)], ids=str)
def test_task_4_empty_blocks_are_refused(blocks: tuple[int, int]) -> None:
    with check_value_error(query_block=blocks[0], key_block=blocks[1]):
        flash_attention(*qkv(B), None, None, *blocks)


# Memory: one head of 8 dimensions, so that what grows with L x S stands out.

Attend = Callable[[mx.array, mx.array, mx.array], mx.array]


def plain_causal(query: mx.array, key: mx.array, value: mx.array) -> mx.array:
    return scaled_dot_product_attention_grouped(query, key, value, mask="causal")


def flash_causal(query: mx.array, key: mx.array, value: mx.array) -> mx.array:
    return flash_attention(query, key, value, None, "causal", 128, 256)


def peak_of(attend: Attend, length: int, dtype: mx.Dtype = mx.float32) -> int:
    """The most bytes held beyond the inputs, for as many queries as keys."""
    inputs = qkv(1, H_q=1, H=1, L=length, S=length, D=8, dtype=dtype)
    mx.eval(inputs)
    return peak_bytes(lambda: mx.eval(attend(*inputs)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_task_4_memory_grows_with_the_length_not_its_square(dtype: mx.Dtype, on_cpu: None) -> None:
    short, long = (peak_of(flash_causal, length, dtype) for length in (1024, 4096))
    assert long <= 4.4 * short, f"4 times the length took {long / short:.1f} times the memory"
    all_scores = 4 * 4096 * 4096
    assert long <= all_scores / 12, (
        f"{long} bytes for 4096 queries and keys; all their scores would be {all_scores} bytes: "
        "are all blocks begun before one is done?"
    )


def test_task_4_a_block_of_queries_begins_when_the_one_before_is_done(on_cpu: None) -> None:
    inputs = qkv(1, H_q=1, H=1, L=2048, S=2048, D=8)
    mx.eval(inputs)
    peak = peak_bytes(lambda: mx.eval(flash_attention(*inputs, None, None, 32, 2048)))
    check_blocks_at_once(peak, 4 * 32 * 2048, 12, "query blocks")


def test_task_4_memory_of_the_plain_version_grows_with_the_square() -> None:
    flash, short, long = peak_of(flash_causal, 512), peak_of(plain_causal, 512), peak_of(plain_causal, 2048)
    assert long >= 12 * short, f"4 times the length took {long / short:.1f} times the memory"
    assert flash < short, f"flash {flash} bytes, plain {short}"


# The model, with either attention.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = Variant("qwen3", "qwen3")
    return save(variant, build(variant), tmp_path_factory.mktemp("checkpoint"))


def small_blocks(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    return flash_attention(query, key, value, scale, mask, query_block=4, key_block=8)


@pytest.mark.parametrize("attend", [flash_attention, small_blocks], ids=["default blocks", "small blocks"])
@pytest.mark.parametrize("name", PASSES)
def test_task_4_the_model_gives_the_same_logits(
    name: str, attend: Callable[..., mx.array], checkpoint: Path
) -> None:
    expected = PASSES[name](load_model(checkpoint))
    actual = PASSES[name](load_model(checkpoint, operations=Operations(attention=attend)))
    check_close(actual, expected, f"logits {name}, as with the plain attention", tolerance=1e-5)
