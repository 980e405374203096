"""Week 2, day 6: continuous batching."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batching import (
    cache_of,
    check_all_released,
    keys_and_values,
    peak_bytes,
    sampled_alone,
    small_model,
    submit_prefilled,
)
from tests.support.check import check_close, check_equal, check_value_error
from tests.support.counting import check_calls, count_calls
from tests.support.fakes import (
    VOCAB_SIZE,
    FakeModel,
    FakeTokenizer,
    ModelFailureError,
    continuation,
    prompt_of,
)
from tests.support.oracles import causal_mask, causal_mask_mistakes, hidden_where
from tests.support.precision import short_types
from tests.support.text_tokenizers import DecodedTokens
from tiny_llm import BatchGenerator, BatchingKvCache, Request, SamplingParams, TinyKvFullCache
from tiny_llm.batching.answer import Answer
from tiny_llm.ops.attention import Mask, scaled_dot_product_attention_grouped

tokenizer = FakeTokenizer()


# Task 1: slots


def slot_content(cache: BatchingKvCache, slot: int, length: int) -> list[mx.array]:
    """Keys and values [H, length, D] that a slot holds; in `state` the occupied rows come first."""
    row = cache.active_slots.index(slot)
    return [held[row, :, :length] for held in cache.state]


def lengths_by_slot(cache: BatchingKvCache) -> dict[int, int]:
    return dict(zip(cache.active_slots, cache.offset, strict=True))


def check_slot(cache: BatchingKvCache, slot: int, content: TinyKvFullCache) -> None:
    __tracebackhide__ = True
    held = slot_content(cache, slot, content.offset)
    for name, actual, expected in zip(("keys", "values"), held, content.fetch(), strict=True):
        check_close(actual, expected[0], f"{name} in slot {slot}", tolerance=0)


def slots_with(
    lengths: dict[int, int], num_slots: int = 5, max_seq_len: int | None = None
) -> BatchingKvCache:
    """A cache whose slots hold so many tokens, seeded by the slot."""
    cache = BatchingKvCache(num_slots, max_seq_len)
    for slot, length in lengths.items():
        cache.add_request(cache_of(length, seed=slot), slot)
    return cache


def test_task_1_a_request_occupies_its_slot() -> None:
    cache = BatchingKvCache(5)
    check_equal([cache.active_slots, cache.offset], [[], []], "slots and offset of a new cache")
    for slot, length in ((3, 7), (0, 2), (4, 11)):
        cache.add_request(cache_of(length, seed=slot), slot)
    check_equal(lengths_by_slot(cache), {3: 7, 0: 2, 4: 11}, "number of tokens in each occupied slot")


def test_task_1_each_slot_holds_its_own_request() -> None:
    cache = slots_with({3: 7, 0: 2, 4: 11})
    for slot, length in ((0, 2), (3, 7), (4, 11)):
        check_slot(cache, slot, cache_of(length, seed=slot))


def test_task_1_remove_frees_that_slot_alone() -> None:
    cache = slots_with({0: 2, 1: 5, 3: 7})
    cache.remove_request(1)
    check_equal(lengths_by_slot(cache), {0: 2, 3: 7}, "number of tokens in each slot after the removal")
    for slot, length in ((0, 2), (3, 7)):
        check_slot(cache, slot, cache_of(length, seed=slot))


def test_task_1_the_next_token_of_a_row_goes_where_it_ends() -> None:
    cache = slots_with({0: 2, 1: 5, 3: 7})
    check_equal(cache.offset, [2, 5, 7], "offset, a row each")
    cache.remove_request(0)
    check_equal(cache.offset, [7, 5], "offset after a request left, whose place the last row took")


def test_task_1_a_freed_slot_takes_another_request() -> None:
    cache = slots_with({0: 2, 1: 50, 3: 7})
    cache.remove_request(1)
    cache.add_request(cache_of(4, seed=9), 1)
    check_equal(lengths_by_slot(cache), {0: 2, 1: 4, 3: 7}, "number of tokens in each slot")
    check_slot(cache, 1, cache_of(4, seed=9))
    for slot, length in ((0, 2), (3, 7)):
        check_slot(cache, slot, cache_of(length, seed=slot))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)], ids=str)
def test_task_1_slots_are_freed_in_any_order(order: tuple[int, ...]) -> None:
    lengths = {0: 2, 1: 5, 2: 3, 3: 7}
    cache = slots_with(lengths)
    for removed in order:
        cache.remove_request(removed)
        del lengths[removed]
        check_equal(lengths_by_slot(cache), lengths, "number of tokens in each slot")
        for slot, length in lengths.items():
            check_slot(cache, slot, cache_of(length, seed=slot))
    check_equal(len(cache.state), 2, "arrays that an empty cache keeps for those who come next")


def test_task_1_occupied_slot_is_an_error() -> None:
    cache = slots_with({0: 2, 1: 5})
    with check_value_error(id=1):
        cache.add_request(cache_of(3, seed=9), 1)
    check_equal(lengths_by_slot(cache), {0: 2, 1: 5}, "number of tokens in each slot after the error")
    check_slot(cache, 1, cache_of(5, seed=1))


def test_task_1_removing_from_a_free_slot_is_an_error() -> None:
    cache = slots_with({0: 2, 1: 5})
    cache.remove_request(1)
    for slot in (1, 2):
        with check_value_error(id=slot):
            cache.remove_request(slot)
    check_equal(cache.active_slots, [0], "occupied slots after the errors")


@pytest.mark.parametrize("slot", [-1, 5, 6])
def test_task_1_a_slot_out_of_range_is_an_error(slot: int) -> None:
    cache = slots_with({0: 2, 4: 3})
    with check_value_error(id=slot):
        cache.add_request(cache_of(3, seed=9), slot)
    with check_value_error(id=slot):
        cache.remove_request(slot)
    check_equal(lengths_by_slot(cache), {0: 2, 4: 3}, "number of tokens in each slot after the errors")


@pytest.mark.parametrize("occupied", [{}, {0: 4}], ids=["first", "second"])
def test_task_1_a_cache_longer_than_max_seq_len_is_an_error(occupied: dict[int, int]) -> None:
    cache = slots_with(occupied, max_seq_len=11)
    with check_value_error(num_tokens=12, max_seq_len=11):
        cache.add_request(cache_of(12, seed=9), 1)
    check_equal(cache.active_slots, list(occupied), "occupied slots after the error")
    cache.add_request(cache_of(11, seed=9), 1)
    check_slot(cache, 1, cache_of(11, seed=9))


# Each has 70 tokens, more than there is room for: a cache that grows before the check is caught.
MISFITS: dict[str, Callable[[], TinyKvFullCache]] = {
    "no token": TinyKvFullCache,
    "two rows": lambda: cache_of(70, seed=9, B=2),
    "heads": lambda: cache_of(70, seed=9, H=3),
    "one head": lambda: cache_of(70, seed=9, H=1),
    "dimensions": lambda: cache_of(70, seed=9, D=7),
    "type": lambda: cache_of(70, seed=9, dtype=mx.float16),
}


@pytest.mark.parametrize("name", MISFITS)
def test_task_1_what_does_not_fit_leaves_the_slot_free(name: str) -> None:
    cache = slots_with({0: 4})
    with check_value_error():
        cache.add_request(MISFITS[name](), 1)
    check_equal([cache.active_slots, cache.offset], [[0], [4]], "slots and offset after the error")
    check_slot(cache, 0, cache_of(4, seed=0))


@pytest.mark.parametrize("name", ["no token", "two rows"])
def test_task_1_an_error_in_the_first_request_stores_nothing(name: str) -> None:
    cache = BatchingKvCache(3)
    with check_value_error():
        cache.add_request(MISFITS[name](), 1)
    check_equal([cache.active_slots, cache.state], [[], []], "slots and state after the error")


CHANGES: dict[str, Callable[[TinyKvFullCache], object]] = {
    "append": lambda cache: cache.update_and_fetch(*keys_and_values(3, seed=8)),
    "overwrite": lambda cache: (cache.rewind(4), cache.update_and_fetch(*keys_and_values(4, seed=8))),
    "release": lambda cache: cache.release(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_task_1_later_changes_of_the_request_s_own_cache_do_not_matter(change: str) -> None:
    cache, own = BatchingKvCache(3), cache_of(7, seed=9)
    cache.add_request(own, 2)
    check_equal(own.offset, 7, "tokens in the request's own cache, which is copied and stays as it is")
    CHANGES[change](own)
    check_equal(cache.offset, [7], "length of the slot")
    check_slot(cache, 2, cache_of(7, seed=9))


def test_task_1_a_longer_request_leaves_the_others_as_they_are() -> None:
    cache = slots_with({0: 2, 2: 5})
    cache.add_request(cache_of(300, seed=1), 1)
    for slot, length in ((0, 2), (1, 300), (2, 5)):
        check_slot(cache, slot, cache_of(length, seed=slot))


def test_task_1_only_what_is_cached_is_copied() -> None:
    own = cache_of(9, seed=1)
    own.rewind(4)
    cache = BatchingKvCache(3)
    cache.add_request(own, 1)
    check_equal(cache.offset, [5], "length of the slot after a rewind of the request's cache")


def test_task_1_nothing_of_a_broken_request_stays_in_its_slot() -> None:
    cache, broken = BatchingKvCache(3), TinyKvFullCache()
    broken.update_and_fetch(mx.full((1, 2, 9, 5), mx.nan), mx.full((1, 2, 9, 5), mx.inf))
    cache.add_request(broken, 1)
    cache.remove_request(1)
    cache.add_request(cache_of(4, seed=1), 1)
    for name, held in zip(("keys", "values"), cache.state, strict=True):
        row = held[cache.active_slots.index(1)]
        check_equal(bool(mx.isfinite(row).all()), True, f"{name} of the slot are finite, its unused end too")


def test_task_1_a_row_that_moves_costs_a_copy_of_that_row_alone() -> None:
    """MLX writes to a copy of the whole array as long as anything else still reads it."""
    peaks = []
    for _ in range(4):  # what reads the array may be gone in time, or not
        cache = slots_with(dict.fromkeys(range(5), 2000))
        mx.eval(cache.state)
        whole = sum(held.nbytes for held in cache.state)

        def remove_first(cache: BatchingKvCache = cache) -> None:
            cache.remove_request(cache.active_slots[0])
            mx.eval(cache.state)

        peaks += [peak_bytes(remove_first) for _ in range(4)]
    peak = max(peaks)
    if peak > whole / 2:
        pytest.fail(f"one row of five was moved: {peak} bytes were held for it, the whole cache has {whole}")


# Task 2: rows of different lengths


class Rows:
    """What the slots should hold, kept as plain lists of arrays beside the cache under test."""

    def __init__(self, lengths: dict[int, int], num_slots: int = 5, max_seq_len: int | None = None) -> None:
        self.cache = BatchingKvCache(num_slots, max_seq_len)
        self.held: dict[int, list[mx.array]] = {}
        self.num_draws = 0
        for slot, length in lengths.items():
            self.add(slot, length)

    def add(self, slot: int, length: int) -> None:
        own = cache_of(length, seed=100 + slot + length)
        self.held[slot] = [held[0] for held in own.fetch()]
        self.cache.add_request(own, slot)

    def remove(self, slot: int) -> None:
        del self.held[slot]
        self.cache.remove_request(slot)

    def update(self, L: int = 1, mask: Mask = "causal") -> tuple[mx.array, mx.array, list[int], mx.array]:
        """Append L tokens to each row, here and there."""
        self.num_draws += 1
        new = keys_and_values(L, seed=self.num_draws, B=len(self.held))
        returned = self.cache.update_and_fetch(*new, mask=mask)
        for row, slot in enumerate(self.cache.active_slots):
            self.held[slot] = [
                mx.concatenate([old, x[row]], axis=1) for old, x in zip(self.held[slot], new, strict=True)
            ]
        return returned

    def check(self, returned: tuple[mx.array, mx.array, list[int], mx.array], L: int = 1) -> None:
        """Fail unless the content, the lengths and the mask of every row are what they should be."""
        __tracebackhide__ = True
        keys, values, lengths, mask = returned
        check_equal(sorted(self.cache.active_slots), sorted(self.held), "occupied slots")
        rows = [self.held[slot] for slot in self.cache.active_slots]
        check_equal(list(lengths), [row[0].shape[1] for row in rows], "tokens cached for each row")
        B, S = len(rows), max(lengths)
        check_equal([x.shape for x in (keys, values)], [(B, 2, S, 5)] * 2, "shapes of keys and values")
        mask = mx.broadcast_to(mask, (B, 2, L, S))
        for row, (key, value) in enumerate(rows):
            length = lengths[row]
            others = {
                f"the {name} of row {other}": held[i][:, :length]
                for other, held in enumerate(rows)
                for i, name in enumerate(("keys", "values"))
            }
            check_close(keys[row, :, :length], key, f"keys of row {row}", tolerance=0, mistakes=others)
            check_close(values[row, :, :length], value, f"values of row {row}", tolerance=0, mistakes=others)
            sees = np.arange(S)[None, :] <= length - L + np.arange(L)[:, None]
            expected = np.broadcast_to(np.where(sees, 0.0, -np.inf), (2, L, S))
            wrong_masks = {
                name: np.broadcast_to(wrong, (2, L, S))
                for name, wrong in {
                    "the mask of the longest row": causal_mask(L, S),
                    "a mask made before the new tokens were counted": hidden_where(
                        np.arange(S)[None, :] > length - 2 * L + np.arange(L)[:, None]
                    ),
                    **causal_mask_mistakes(L, S, first=length - L),
                }.items()
            }
            check_close(mask[row], expected, f"mask of row {row}", tolerance=0, mistakes=wrong_masks)


@pytest.mark.parametrize(
    "lengths",
    [{0: 7}, {0: 2, 1: 7, 2: 3}, {0: 7, 1: 7}, {4: 2, 1: 7, 3: 3}, {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}, {4: 6}],
    ids=str,
)
def test_task_2_each_occupied_slot_is_a_row(lengths: dict[int, int]) -> None:
    rows = Rows(lengths)
    rows.check(rows.update())


@short_types
def test_task_2_positions_are_whole_numbers_whatever_the_type_of_the_keys(dtype: mx.Dtype) -> None:
    """bfloat16 has no 257 and float16 no 2049: a row would see a key beyond its own."""
    for longest in (300, 2100):
        cache, lengths = BatchingKvCache(2), (longest - 11, longest)
        for slot, length in enumerate(lengths):
            cache.add_request(cache_of(length, seed=slot, dtype=dtype), slot)
        *_, mask = cache.update_and_fetch(*keys_and_values(2, seed=9, B=2, dtype=dtype), mask="causal")
        for row, length in enumerate(lengths):
            expected = np.full((2, longest + 2), -np.inf)
            expected[:, : length + 2] = causal_mask(2, length + 2)
            own = mx.broadcast_to(mask, (2, 2, 2, longest + 2))[row, 0]
            cause = f"a mask whose positions are counted in {dtype}, where neighbours become one number"
            query_position = mx.arange(length, length + 2, dtype=dtype)[:, None]
            visible = mx.arange(longest + 2, dtype=dtype) <= query_position
            mistakes = {cause: mx.where(visible, 0.0, -mx.inf)}
            check_close(own, expected, f"mask of a row of {length} tokens", 0, mistakes)


def test_task_2_rows_grow_as_they_decode() -> None:
    rows = Rows({3: 2, 1: 7, 0: 4})
    for _ in range(9):
        rows.check(rows.update())
    check_equal(lengths_by_slot(rows.cache), {3: 11, 1: 16, 0: 13}, "number of tokens in each slot")


def test_task_2_slots_are_filled_and_freed_between_tokens() -> None:
    rows = Rows({0: 2, 1: 9})
    rows.check(rows.update())
    rows.add(3, 5)
    rows.check(rows.update())
    rows.remove(0)
    rows.check(rows.update())
    rows.remove(1)
    rows.add(0, 3)
    for _ in range(3):
        rows.check(rows.update())


def test_task_2_a_slot_used_again_does_not_see_the_earlier_request() -> None:
    rows = Rows({0: 30, 1: 4})
    rows.update()
    rows.remove(0)
    rows.add(0, 2)
    rows.check(rows.update())


def test_task_2_content_is_kept_when_the_arrays_grow() -> None:
    rows = Rows({2: 60, 0: 3})
    for _ in range(140):
        returned = rows.update()
    rows.check(returned)


def test_task_2_the_arrays_grow_seldom() -> None:
    rows = Rows({0: 3, 1: 5})
    capacities = set()
    for _ in range(300):
        rows.cache.update_and_fetch(*keys_and_values(1, seed=1, B=2))
        mx.eval(rows.cache.state)
        capacities.add(rows.cache.state[0].shape[2])
    assert len(capacities) <= 10, f"300 tokens a row copied the cache {len(capacities)} times"


@pytest.mark.parametrize("L", [2, 3, 70])
def test_task_2_several_tokens_a_row(L: int) -> None:
    rows = Rows({0: 2, 3: 7, 4: 3})
    rows.check(rows.update(L), L)
    rows.check(rows.update())


def test_task_2_the_caller_s_mask_is_replaced() -> None:
    rows = Rows({0: 2, 1: 4})
    rows.check(rows.update(mask=None))
    rows.check(rows.update(L=3, mask=None), L=3)
    rows.check(rows.update(mask=mx.zeros((2, 1, 1, 9))))


def attend(cache: BatchingKvCache, B: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """What each row's next token gets from attention."""
    query = keys_and_values(1, seed=51, B=B, H=6, dtype=dtype)[0]
    key, value, _, mask = cache.update_and_fetch(*keys_and_values(1, seed=52, B=B, dtype=dtype), "causal")
    return scaled_dot_product_attention_grouped(query, key, value, mask=mask)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(mx.float32, 1e-6), (mx.bfloat16, 2e-2), (mx.float16, 2e-3)]
)
def test_task_2_attention_of_a_row_does_not_depend_on_the_others(dtype: mx.Dtype, tolerance: float) -> None:
    lengths = {0: 3, 2: 11, 4: 6}
    together = BatchingKvCache(5)
    for slot, length in lengths.items():
        together.add_request(cache_of(length, seed=slot, dtype=dtype), slot)
    actual = attend(together, B=3, dtype=dtype)
    check_equal(actual.dtype, dtype, "type of the attention's output, which the mask must not change")
    query = keys_and_values(1, seed=51, B=3, H=6, dtype=dtype)[0]
    new_key, new_value = keys_and_values(1, seed=52, B=3, dtype=dtype)
    for row, slot in enumerate(together.active_slots):
        key, value, _, _ = cache_of(lengths[slot], seed=slot, dtype=dtype).update_and_fetch(
            new_key[row : row + 1], new_value[row : row + 1]
        )
        alone = scaled_dot_product_attention_grouped(query[row : row + 1], key, value)
        check_close(actual[row : row + 1], alone, f"attention of row {row}", tolerance=tolerance)


@pytest.mark.parametrize("broken_slot", [0, 1, 2])
def test_task_2_a_broken_request_leaves_no_nan(broken_slot: int) -> None:
    cache, broken = BatchingKvCache(3), TinyKvFullCache()
    broken.update_and_fetch(mx.full((1, 2, 9, 5), mx.nan), mx.full((1, 2, 9, 5), mx.inf))
    cache.add_request(broken, broken_slot)
    cache.remove_request(broken_slot)
    others = [slot for slot in range(3) if slot != broken_slot]
    cache.add_request(cache_of(20, seed=1), others[0])
    check_equal(
        bool(mx.isfinite(attend(cache, B=1)).all()), True, "attention is finite beside a broken free slot"
    )
    cache.add_request(cache_of(2, seed=2), broken_slot)
    check_equal(
        bool(mx.isfinite(attend(cache, B=2)).all()), True, "attention is finite when the slot is used again"
    )


def check_unchanged(cache: BatchingKvCache, lengths: dict[int, int]) -> None:
    __tracebackhide__ = True
    check_equal(lengths_by_slot(cache), lengths, "number of tokens in each slot after the error")
    for slot, length in lengths.items():
        check_slot(cache, slot, cache_of(length, seed=slot))


@pytest.mark.parametrize("L", [1, 4])
def test_task_2_max_seq_len_bounds_every_row(L: int) -> None:
    lengths = {0: 3, 2: 12 - L, 3: 5}
    cache = slots_with(lengths, max_seq_len=11)
    with check_value_error(num_tokens=12, max_seq_len=11):
        cache.update_and_fetch(*keys_and_values(L, seed=1, B=3))
    check_unchanged(cache, lengths)


@pytest.mark.parametrize("L", [1, 4])
def test_task_2_a_row_may_be_exactly_max_seq_len_long(L: int) -> None:
    cache = slots_with({0: 3, 2: 11 - L}, max_seq_len=11)
    cache.update_and_fetch(*keys_and_values(L, seed=1, B=2))
    check_equal(lengths_by_slot(cache), {0: 3 + L, 2: 11}, "number of tokens in each slot")


def misfit(**kwargs: int | mx.Dtype) -> tuple[mx.array, mx.array]:
    return keys_and_values(**{"L": 1, "seed": 9, "B": 2, **kwargs})


ROW_MISFITS = {
    "a row too many": misfit(B=3),
    "a row for each slot": misfit(B=5),
    "one row": misfit(B=1),
    "heads": misfit(H=3),
    "dimensions": misfit(D=7),
    "type": misfit(dtype=mx.float16),
    "heads of the value": (misfit()[0], misfit(H=3)[1]),
    "length of the value": (misfit()[0], misfit(L=2)[1]),
}


@pytest.mark.parametrize("name", ROW_MISFITS)
def test_task_2_what_does_not_fit_is_not_stored(name: str) -> None:
    cache = slots_with({1: 3, 3: 6})
    with check_value_error():
        cache.update_and_fetch(*ROW_MISFITS[name])
    check_unchanged(cache, {1: 3, 3: 6})


def test_task_2_no_occupied_slot_is_an_error() -> None:
    cache = slots_with({1: 3})
    cache.remove_request(1)
    for empty in (cache, BatchingKvCache(2)):
        with check_value_error():
            empty.update_and_fetch(*keys_and_values(1, seed=1))


def test_task_2_logits_equal_each_request_alone() -> None:
    model = small_model()
    prompts = {0: prompt_of(3, 1), 2: prompt_of(17, 2), 3: prompt_of(8, 3)}
    slots = [BatchingKvCache(4) for _ in range(model.num_hidden_layers)]

    def add(slot: int) -> None:
        own = model.create_kv_cache()
        model(mx.array([prompts[slot]]), 0, own)
        for layer, prefilled in zip(slots, own, strict=True):
            layer.add_request(prefilled, slot)

    def decode(new: dict[int, int]) -> None:
        """Compute one token of each row and compare with the sequences computed whole."""
        active = slots[0].active_slots
        offsets = [len(prompts[slot]) for slot in active]
        logits = model(mx.array([[new[slot]] for slot in active]), offsets, slots)
        for row, slot in enumerate(active):
            prompts[slot] = [*prompts[slot], new[slot]]
            alone = model(mx.array([prompts[slot]]))[0, -1]
            check_close(logits[row, -1], alone, f"logits of the request in slot {slot}", tolerance=1e-4)

    add(2)
    decode({2: 5})
    add(0)
    decode({2: 7, 0: 9})
    decode({0: 8, 2: 1})
    for layer in slots:
        layer.remove_request(2)
    add(3)
    decode({0: 2, 3: 4})


# Task 3: a request that decodes


def decoding(
    prompt: Sequence[int] | str = "PROMPT",
    first: int = 7,
    tokenizer: FakeTokenizer = tokenizer,
    max_seq_len: int | None = None,
    max_tokens: int | None = None,
    stop: tuple[str, ...] = (),
) -> Request:
    """A request whose prompt is computed and whose first token is sampled."""
    request = Request(
        FakeModel(),
        tokenizer,
        prompt,
        prompt_idx=4,
        max_seq_len=max_seq_len,
        params=SamplingParams(max_tokens=max_tokens, stop=stop),
    )
    request.offset = len(request.prompt_ids)
    request.accept(first)
    return request


def decode_all(request: Request, tokens: Sequence[int]) -> list[int]:
    """Decode the tokens until the request is done; return those that it took."""
    taken = []
    for token in tokens:
        if request.is_done:
            break
        request.decode_done(token)
        taken.append(token)
    return taken


def letters(text: str) -> list[int]:
    return tokenizer.encode(text)


def test_task_3_each_token_is_recorded() -> None:
    request = decoding(first=7)
    seen = []
    for token in (30, 8, 30):
        request.decode_done(token)
        seen.append((request.offset, request.next_token, list(request.token_ids)))
    expected = [(7, 30, [7, 30]), (8, 8, [7, 30, 8]), (9, 30, [7, 30, 8, 30])]
    check_equal(seen, expected, "offset, next token and tokens after each decode")
    check_equal([request.is_done, request.finish_reason], [False, None], "is done, and why")


def test_task_3_text_is_the_answer_so_far() -> None:
    request = decoding("PROMPT", first=letters("A")[0])
    texts = [request.text()]
    for token in letters("NSW"):
        request.decode_done(token)
        texts.append(request.text())
    check_equal(texts, ["A", "AN", "ANS", "ANSW"], "text, without the prompt")


@pytest.mark.parametrize("eos", [0, 44])
def test_task_3_end_of_text_ends_the_answer(eos: int) -> None:
    request = decoding(tokenizer=FakeTokenizer(eos_token_ids=[0, 44]), first=letters("A")[0])
    request.decode_done(letters("B")[0])
    request.decode_done(eos)
    check_equal([request.is_done, request.finish_reason], [True, "stop"], "is done, and why")
    check_equal(request.token_ids, letters("AB"), "tokens, without the end-of-text id")
    check_equal(request.text(), "AB", "text")
    check_equal(request.offset, 8, "tokens computed: the prompt's 6 and both of the answer")


def test_task_3_a_stop_token_ends_the_answer_like_end_of_text() -> None:
    answer = Answer(4, tokenizer, max_tokens=9, stop_token_ids=(17, 23))
    check_equal(sorted(answer.end_ids), sorted([*tokenizer.eos_token_ids, 17, 23]), "ids that end it")
    for token in (16, 23):
        answer.accept(token)
    check_equal([answer.finish_reason, answer.token_ids], ["stop", [16]], "why it ends, and its tokens")


def test_task_3_end_of_text_right_after_the_first_token() -> None:
    request = decoding(first=7)
    request.decode_done(0)
    check_equal([request.finish_reason, request.token_ids], ["stop", [7]], "why it is done, and its tokens")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_task_3_max_tokens_bounds_the_answer(max_tokens: int) -> None:
    request = decoding(first=7, max_tokens=max_tokens)
    decode_all(request, range(10, 20))
    check_equal(request.token_ids, [7, *range(10, 20)][:max_tokens], "tokens of the answer")
    check_equal(request.finish_reason, "length", "why it is done")


@pytest.mark.parametrize("max_seq_len", [6, 7, 8, 9, 13])
def test_task_3_max_seq_len_bounds_prompt_and_answer(max_seq_len: int) -> None:
    request = decoding(prompt_of(6), first=7, max_seq_len=max_seq_len)
    decode_all(request, range(10, 20))
    check_equal(len(request.token_ids), max_seq_len - 6, "number of tokens of the answer to a prompt of 6")
    check_equal(request.finish_reason, "length", "why it is done")


@pytest.mark.parametrize(("max_seq_len", "max_tokens", "expected"), [(9, 5, 3), (13, 5, 5), (11, 5, 5)])
def test_task_3_the_smaller_bound_counts(max_seq_len: int, max_tokens: int, expected: int) -> None:
    request = decoding(prompt_of(6), first=7, max_seq_len=max_seq_len, max_tokens=max_tokens)
    decode_all(request, range(10, 20))
    check_equal(
        [len(request.token_ids), request.finish_reason], [expected, "length"], "tokens, and why it is done"
    )


def test_task_3_without_bounds_it_goes_on() -> None:
    request = decoding()
    decode_all(request, [5] * 700)
    check_equal([len(request.token_ids), request.is_done], [701, False], "tokens, and whether it is done")


@pytest.mark.parametrize(
    ("answer", "stop", "text"),
    [
        ("ABCXDEF", ("X",), "ABC"),
        ("ABCXYZDEF", ("XYZ",), "ABC"),
        ("AXYXYZDEF", ("XYZ",), "AXY"),
        ("ABCXYZDEF", ("Q", "YZ", "XYZ"), "ABC"),
        ("ABCXYZDEF", ("XYZ", "D"), "ABC"),
        ("XYABCDEFG", ("XY",), ""),
        ("ABCDEFGHI", ("I",), "ABCDEFGH"),
        ("ABCDEFGXYZ", ("YX", "FGX"), "ABCDE"),
        ("Z" + "ABCDEFG" * 6 + "XY", ("ABCDEFG" * 6 + "X",), "Z"),  # no window of a few tokens holds it
    ],
    ids=str,
)
def test_task_3_a_stop_string_ends_the_answer(answer: str, stop: tuple[str, ...], text: str) -> None:
    first, *rest = letters(answer)
    request = decoding(first=first, stop=stop, max_tokens=50)
    taken = decode_all(request, rest)
    end = min(answer.index(string) + len(string) for string in stop if string in answer)
    missed = (
        "an answer searched in its first token alone, as when `_newest_text` is replaced: shorten the list "
        "in place, since the stream appends to this very list"
    )
    mistakes = (
        {missed: len(answer)} if stop == ("X",) else None
    )  # a longer one may be missed for other reasons
    check_equal(len(taken) + 1, end, "tokens until the stop string is complete", mistakes)
    check_equal([request.finish_reason, request.text()], ["stop", text], "why it is done, and its text")


def test_task_3_a_stop_string_in_the_first_token() -> None:
    answer = Answer(0, tokenizer, 9, ("X",))
    answer.accept(letters("X")[0])
    check_equal([answer.finish_reason, answer.text()], ["stop", ""], "why it is done, and its text")


def test_task_3_no_stop_string_no_stop() -> None:
    request = decoding(first=letters("A")[0], stop=("XYZ", "Q"))
    decode_all(request, letters("XYYZXZ"))
    check_equal([request.is_done, request.text()], [False, "AXYYZXZ"], "is done, and its text")


def test_task_3_without_stop_strings_nothing_is_decoded_until_the_text_is_asked_for() -> None:
    tokenizer = FakeTokenizer()
    decode = {"decode": count_calls(tokenizer, "decode")}
    request = decoding(tokenizer=tokenizer)
    decode_all(request, letters("ABCD"))
    check_calls(decode, 0, "of the tokenizer, for four tokens of a request without stop strings")


def test_task_3_looking_for_stop_strings_costs_the_same_after_any_number_of_tokens() -> None:
    tokenizer = FakeTokenizer()
    decoded = DecodedTokens(tokenizer)
    request = decoding(tokenizer=tokenizer, first=1, stop=("XYZ" * 40, "Q"))
    decode_all(request, letters("ABCD") * 100)
    decoded.check(400, "an answer with stop strings")


def test_task_3_a_stop_string_of_the_prompt_does_not_count() -> None:
    request = decoding("AXYZX", first=letters("Y")[0], stop=("XYZ", "XY"))
    decode_all(request, letters("ZA"))
    check_equal([request.is_done, request.text()], [False, "YZA"], "is done, and its text")


PIECES = ("", "the", " end", "en", "d of", " the", " story", ".", "é\n", "\n\n")


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "num_taken"),
    [
        ([1, 2, 6, 7], ("nd s",), "the e", 3),
        ([1, 2, 4, 5], (" end",), "the", 2),
        ([1, 3, 4, 5, 6], ("end of the",), "the", 4),
        ([1, 8, 9, 1], ("\n\n",), "theé", 3),
        ([1, 8, 1, 8], ("é",), "the", 2),
        ([1, 6, 7, 2], ("y.",), "the stor", 3),
        ([1, 6, 7, 2], ("o",), "the st", 2),
    ],
)
def test_task_3_stop_strings_across_tokens_of_several_characters(
    tokens: list[int], stop: tuple[str, ...], text: str, num_taken: int
) -> None:
    request = decoding(tokenizer=FakeTokenizer(PIECES), prompt=[1], first=tokens[0], stop=stop)
    taken = 1 + len(decode_all(request, tokens[1:]))
    check_equal([taken, request.text()], [num_taken, text], "tokens taken, and text before the stop string")
    check_equal(request.finish_reason, "stop", "why it is done")


@given(
    tokens=st.lists(st.integers(1, 9), min_size=2, max_size=12),
    start=st.integers(0, 20),
    length=st.integers(1, 9),
    other=st.text("ednthe .", min_size=1, max_size=3),
)
def test_task_3_stops_at_the_first_token_that_completes_a_stop_string(
    tokens: list[int], start: int, length: int, other: str
) -> None:
    whole = "".join(PIECES[token] for token in tokens)
    stop = (other, whole[start : start + length] or "Q")
    request = decoding(tokenizer=FakeTokenizer(PIECES), prompt=[1], first=tokens[0], stop=stop)
    taken = 1 + len(decode_all(request, tokens[1:]))
    texts = ["".join(PIECES[token] for token in tokens[: n + 1]) for n in range(len(tokens))]
    complete = [any(string in text for string in stop) for text in texts]
    check_equal(
        taken, complete.index(True) + 1 if True in complete else len(tokens), f"tokens taken with {stop}"
    )
    ends = [whole.index(string) for string in stop if string in texts[taken - 1]]
    check_equal(request.text(), whole[: min(ends)] if ends else whole, f"text with {stop}")


def test_task_3_a_stop_string_in_the_last_token_that_is_allowed() -> None:
    request = decoding(first=letters("A")[0], stop=("XY",), max_tokens=3)
    decode_all(request, letters("XYZ"))
    check_equal([request.finish_reason, request.text()], ["stop", "A"], "why it is done, and its text")


def test_task_3_end_of_text_beats_the_bound() -> None:
    request = decoding(first=7, max_tokens=3)
    decode_all(request, [8, 0])
    check_equal(
        [request.finish_reason, request.token_ids], ["stop", [7, 8]], "why it is done, and its tokens"
    )
    answer = Answer(4, tokenizer, max_tokens=0)
    answer.accept(0)
    check_equal(answer.finish_reason, "stop", "why an answer ends whose bound is 0, at the end of text")


@pytest.mark.parametrize("last", [0, 9])
def test_task_3_a_request_that_is_done_does_not_decode(last: int) -> None:
    request = decoding(first=7, max_tokens=3)
    decode_all(request, [8, last])
    before = (request.offset, list(request.token_ids), request.finish_reason)
    with check_value_error():
        request.decode_done(9)
    with check_value_error():
        _ = request.next_token
    check_equal(
        (request.offset, request.token_ids, request.finish_reason), before, "the request after the error"
    )


def test_task_3_a_request_still_in_prefill_does_not_decode() -> None:
    request = Request(FakeModel(), tokenizer, prompt_of(9))
    with check_value_error():
        request.decode_done(5)
    check_equal([request.offset, request.token_ids], [0, []], "offset and tokens after the error")


def test_task_3_result_of_a_request_that_is_done() -> None:
    request = decoding(first=letters("A")[0], stop=("XY",))
    with check_value_error(prompt_idx=4):
        request.result()
    decode_all(request, letters("BXYZ"))
    result = request.result()
    actual = (result.prompt_idx, result.text, result.token_ids, result.finish_reason)
    check_equal(actual, (4, "AB", tuple(letters("ABXY")), "stop"), "number, text, tokens and reason")


BAD_PROMPTS = {
    "too long": (prompt_of(12), {"max_seq_len": 11}, {"num_tokens": 12, "max_seq_len": 11}),
    "empty": ([], {"max_seq_len": 11}, {}),
    "empty text": ("", {}, {}),
    "no step": (prompt_of(3), {"prefill_max_step": 0}, {"prefill_max_step": 0}),
    "negative step": (prompt_of(3), {"prefill_max_step": -2}, {"prefill_max_step": -2}),
    "an id below 0": ([3, -1], {}, {"token_id": -1}),
    "an id behind the vocabulary": ([3, VOCAB_SIZE], {}, {"token_id": VOCAB_SIZE}),
    "an id far behind the vocabulary": ([50_000_000], {}, {"token_id": 50_000_000}),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_task_3_a_prompt_that_is_refused_allocates_nothing(name: str) -> None:
    model = FakeModel()
    prompt, options, values = BAD_PROMPTS[name]
    with check_value_error(**values):
        Request(model, tokenizer, prompt, **options)
    check_equal([model.caches, model.calls], [[], []], "caches made and model calls")
    request = decoding(prompt_of(9), max_seq_len=11)
    decode_all(request, [5, 6])
    check_equal(request.finish_reason, "length", "why a prompt that fits is done")


# Task 4: decode and promote


def make_generator(batch_size: int = 3, max_seq_len: int = 64, **options: object) -> BatchGenerator:
    return BatchGenerator(FakeModel(**options), tokenizer, batch_size, max_seq_len=max_seq_len)


def promote(
    generator: BatchGenerator, prompt: Sequence[int], params: SamplingParams | None = None
) -> Request:
    """Bring a prompt, prefilled, into a slot."""
    request = submit_prefilled(generator, prompt, params)
    check_equal(generator.promote_phase(), True, "promote_phase made progress")
    return request


def occupied(generator: BatchGenerator) -> list[list[int]]:
    return [sorted(layer.active_slots) for layer in generator.cache]


def length(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens)


def test_task_4_promote_takes_the_first_free_slot() -> None:
    generator = make_generator()
    requests = [promote(generator, prompt_of(n)) for n in (5, 2, 7)]
    check_equal([generator.slots.index(request) for request in requests], [0, 1, 2], "slots taken in turn")
    held = [lengths_by_slot(layer) for layer in generator.cache]
    check_equal(held, [{0: 5, 1: 2, 2: 7}] * 2, "number of tokens in each slot of each layer")
    check_equal(generator.prefilling, None, "pending request")


def test_task_4_promote_copies_every_layer() -> None:
    generator = make_generator()
    request = submit_prefilled(generator, prompt_of(5))
    expected = [layer.fetch() for layer in request.cache]
    generator.promote_phase()
    for layer, own in zip(generator.cache, expected, strict=True):
        for name, held, prefilled in zip(("keys", "values"), layer.state, own, strict=True):
            check_close(held[0, :, :5], prefilled[0], f"{name} in the slot", tolerance=0)


def test_task_4_promote_releases_the_request_s_own_cache() -> None:
    generator = make_generator()
    request = promote(generator, prompt_of(5))
    check_equal([layer.state for layer in request.cache], [[], []], "the request's own caches")


def test_task_4_promote_waits_for_a_free_slot() -> None:
    generator = make_generator(batch_size=1)
    first = promote(generator, prompt_of(5), length(3))
    second = submit_prefilled(generator, prompt_of(2))
    for _ in range(2):
        check_equal(generator.promote_phase(), False, "promote_phase made progress without a free slot")
        check_equal([generator.slots, generator.prefilling], [[first], second], "slots and pending request")
        generator.decode_phase()
    check_equal(generator.promote_phase(), True, "promote_phase made progress once a slot was free")
    check_equal([generator.slots, generator.prefilling], [[second], None], "slots and pending request")


def test_task_4_promote_waits_for_the_end_of_the_prefill() -> None:
    generator = make_generator()
    check_equal(generator.promote_phase(), False, "promote_phase made progress with nothing pending")
    generator.prefilling = generator.submit(prompt_of(5))
    check_equal(generator.promote_phase(), False, "promote_phase made progress before the prefill was done")
    check_equal(generator.slots, [None] * 3, "slots")


def test_task_4_a_freed_slot_in_the_middle_is_taken_next() -> None:
    generator = make_generator()
    for n, num_tokens in ((5, 9), (2, 2), (7, 9)):
        promote(generator, prompt_of(n), length(num_tokens))
    generator.decode_phase()
    check_equal(occupied(generator), [[0, 2]] * 2, "occupied slots of each layer after slot 1 finished")
    fourth = promote(generator, prompt_of(4))
    check_equal(generator.slots.index(fourth), 1, "slot of the next request")


def test_task_4_decode_is_one_call_for_all_active_slots() -> None:
    generator = make_generator(batch_size=4)
    prompts = [prompt_of(n, seed=n) for n in (5, 2, 7)]
    for prompt in prompts:
        promote(generator, prompt)
    answers = [continuation(prompt, 3) for prompt in prompts]
    generator.model.calls.clear()
    progress = [generator.decode_phase() for _ in range(3)]
    check_equal(progress, [True] * 3, "decode_phase made progress")
    expected = [
        sorted((len(prompt) + i, [answer[i]]) for prompt, answer in zip(prompts, answers, strict=True))
        for i in range(3)
    ]
    check_equal(generator.model.rows, expected, "offset and token of each row of each call")


def test_task_4_free_slots_are_not_computed() -> None:
    generator = make_generator(batch_size=4)
    prompts = [prompt_of(n, seed=n) for n in (5, 2, 7)]
    for prompt, num_tokens in zip(prompts, (2, 9, 9), strict=True):
        promote(generator, prompt, length(num_tokens))
    generator.decode_phase()
    generator.model.calls.clear()
    generator.decode_phase()
    expected = [sorted((len(prompt) + 1, [continuation(prompt, 2)[1]]) for prompt in prompts[1:])]
    check_equal(generator.model.rows, expected, "offset and token of each row")


def test_task_4_rows_have_the_order_of_active_slots() -> None:
    generator = make_generator()
    for num_prompt_tokens, num_tokens in ((5, 2), (2, 9), (7, 9)):
        promote(generator, prompt_of(num_prompt_tokens), length(num_tokens))
    generator.decode_phase()
    check_equal(
        generator.cache[0].active_slots, [2, 1], "slot of each row once the request in slot 0 has left"
    )
    generator.decode_phase()
    mistakes = {
        "the offsets in the order of `slots`: a row belongs to the slot that `active_slots` says": [3, 8]
    }
    check_equal(list(generator.model.calls[-1].offsets), [8, 3], "offset of each row", mistakes)


def test_task_4_nothing_to_decode_calls_no_model() -> None:
    generator = make_generator()
    check_equal([generator.decode_phase(), generator.model.calls], [False, []], "progress, and model calls")


def run_to_end(generator: BatchGenerator, max_steps: int = 200) -> None:
    for _ in range(max_steps):
        if not generator.decode_phase():
            return
    pytest.fail(f"there is still something to decode after {max_steps} decodes")


def test_task_4_tokens_equal_each_request_alone() -> None:
    generator = make_generator()
    jobs = [(prompt_of(5, 1), 9), (prompt_of(11, 2), 4), (prompt_of(3, 3), 8), (prompt_of(7, 4), 6)]
    pending = list(enumerate(jobs))
    requests: dict[int, Request] = {}
    for step in range(30):
        if pending and generator.prefilling is None and step % 2 == 0:
            number, (prompt, num_tokens) = pending.pop(0)
            requests[number] = submit_prefilled(generator, prompt, length(num_tokens))
        generator.decode_phase()
        generator.promote_phase()
    answers = [requests[number].token_ids for number in range(4)]
    check_equal(answers, [continuation(*job) for job in jobs], "tokens of each request")


def test_task_4_a_finished_request_is_handed_out_once() -> None:
    generator = make_generator()
    prompts = [prompt_of(5, 1), prompt_of(3, 2)]
    promote(generator, prompts[0], length(3))
    promote(generator, prompts[1], length(2))
    finished = []
    for _ in range(3):
        generator.decode_phase()
        finished.append(
            [(r.prompt_idx, list(r.token_ids), r.finish_reason) for r in generator.take_finished()]
        )
    expected = [
        [(1, continuation(prompts[1], 2), "length")],
        [(0, continuation(prompts[0], 3), "length")],
        [],
    ]
    check_equal(finished, expected, "number, tokens and reason of those that each decode finished")


def test_task_4_end_of_text_frees_the_slot_in_every_layer() -> None:
    generator = make_generator(eos_at_length=8)
    promote(generator, prompt_of(5, 1))
    promote(generator, prompt_of(6, 2))
    generator.decode_phase()
    generator.decode_phase()
    check_equal(occupied(generator), [[0]] * 2, "occupied slots of each layer")
    check_equal(generator.slots[1], None, "slot 1")
    results = [(r.prompt_idx, list(r.token_ids), r.finish_reason) for r in generator.take_finished()]
    check_equal(results, [(1, continuation(prompt_of(6, 2), 2), "stop")], "number, tokens and reason")


def test_task_4_has_work_until_all_are_done() -> None:
    generator = make_generator()
    seen = [generator.has_work]
    submit_prefilled(generator, prompt_of(5), length(3))
    seen.append(generator.has_work)
    generator.promote_phase()
    seen.append(generator.has_work)
    for _ in range(2):
        generator.decode_phase()
        seen.append(generator.has_work)
    check_equal(seen, [False, True, True, True, False], "has work: new, pending, in a slot, decoding, done")


def test_task_4_max_seq_len_ends_a_request_in_its_slot() -> None:
    generator = make_generator(max_seq_len=9)
    request = promote(generator, prompt_of(5))
    run_to_end(generator)
    check_equal([len(request.token_ids), request.finish_reason], [4, "length"], "tokens, and why it is done")


def test_task_4_each_request_has_its_own_sampling() -> None:
    jobs = [
        (prompt_of(5, 1), SamplingParams(temperature=1.5, seed=1, max_tokens=8)),
        (prompt_of(4, 2), SamplingParams(max_tokens=7)),
        (prompt_of(7, 3), SamplingParams(temperature=3.0, top_k=30, seed=2, max_tokens=9)),
    ]
    no_end = FakeTokenizer(eos_token_ids=[])
    generator = BatchGenerator(FakeModel(), no_end, batch_size=3, max_seq_len=64)
    requests = []
    for prompt, params in jobs:
        requests.append(promote(generator, prompt, params))
        generator.decode_phase()
    run_to_end(generator)
    expected = [sampled_alone(prompt, params, params.max_tokens or 0) for prompt, params in jobs]
    check_equal([request.token_ids for request in requests], expected, "tokens of each request, as alone")


def test_task_4_same_seed_same_tokens_side_by_side() -> None:
    params = SamplingParams(temperature=2.0, seed=5, max_tokens=9)
    generator = BatchGenerator(FakeModel(), FakeTokenizer(eos_token_ids=[]), 2, max_seq_len=64)
    requests = [promote(generator, prompt_of(5), params) for _ in range(2)]
    run_to_end(generator)
    check_equal(requests[0].token_ids, requests[1].token_ids, "tokens of two equal requests")


@pytest.mark.parametrize("failure", [ModelFailureError, KeyboardInterrupt])
def test_task_4_an_error_in_decode_releases_everything(failure: type[BaseException]) -> None:
    generator = make_generator(batch_size=2, fail_at=4, failure=failure)
    for n in (5, 2):
        promote(generator, prompt_of(n))
    submit_prefilled(generator, prompt_of(7))
    generator.decode_phase()
    with pytest.raises(failure):
        generator.decode_phase()
    check_all_released(generator.model, generator)
    check_equal([generator.slots, generator.prefilling], [[None, None], None], "slots and pending request")


@pytest.mark.parametrize("failure", [ModelFailureError, KeyboardInterrupt])
@pytest.mark.parametrize("failing_layer", [0, 1])
def test_task_4_an_error_in_promote_releases_everything(
    failing_layer: int, failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make_generator()
    promote(generator, prompt_of(5))
    submit_prefilled(generator, prompt_of(7))

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(generator.cache[failing_layer], "add_request", fail)
    with pytest.raises(failure):
        generator.promote_phase()
    check_all_released(generator.model, generator)


def test_task_4_an_error_of_a_sampler_releases_everything() -> None:
    generator = make_generator()
    request = promote(generator, prompt_of(5))

    def fail(logprobs: mx.array) -> mx.array:
        raise ModelFailureError

    request.sampler = fail
    with pytest.raises(ModelFailureError):
        generator.decode_phase()
    check_all_released(generator.model, generator)


def test_task_4_a_closed_generator_does_nothing_more() -> None:
    generator = make_generator()
    promote(generator, prompt_of(5))
    generator.close()
    for call in (generator.decode_phase, generator.promote_phase, lambda: generator.submit(prompt_of(3))):
        with check_value_error():
            call()
    check_all_released(generator.model, generator)
