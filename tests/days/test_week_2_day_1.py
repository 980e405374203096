"""Week 2, day 1: KV cache."""

import itertools
import math
from collections.abc import Callable, Sequence

import mlx.core as mx
import pytest

from scripts.hardware.memory import memory_use
from tests.support.batching import HEADS, cache_of, keys_and_values, peak_bytes, small_model
from tests.support.check import check_close, check_equal, check_value_error, fail, normal, short
from tests.support.counting import check_decodes_once
from tests.support.fakes import VOCAB_SIZE, FakeModel, FakeTokenizer, ModelFailureError, continuation
from tiny_llm import Qwen3Model, TinyKvFullCache, make_sampler, simple_generate, simple_generate_with_kv_cache

APPENDS = (3, 1, 7, 1, 2)
PROMPT = "TINY"
tokenizer = FakeTokenizer()


def greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def append_all(
    cache: TinyKvFullCache, lengths: Sequence[int], **kwargs: int | mx.Dtype
) -> tuple[mx.array, mx.array]:
    """Append chunks of these lengths; return what they are together."""
    chunks = [keys_and_values(L, seed, **kwargs) for seed, L in enumerate(lengths)]
    for key, value in chunks:
        cache.update_and_fetch(key, value)
    keys, values = zip(*chunks, strict=True)
    return mx.concatenate(keys, axis=2), mx.concatenate(values, axis=2)


def update(
    cache: TinyKvFullCache, key: mx.array, value: mx.array, *rest: object
) -> tuple[mx.array, mx.array, int, object]:
    """Call update_and_fetch, and see that it returns what can be taken apart."""
    __tracebackhide__ = True
    returned = cache.update_and_fetch(key, value, *rest)
    if not isinstance(returned, tuple):
        fail(f"update_and_fetch must return 4 things (keys, values, offset, mask), got {short(returned)}")
    if len(returned) != 4:
        fail(f"update_and_fetch must return 4 things (keys, values, offset, mask), got {len(returned)}")
    return returned


def check_holds(cache: TinyKvFullCache, keys: mx.array, values: mx.array) -> None:
    __tracebackhide__ = True
    check_equal(cache.offset, keys.shape[2], "offset")
    for name, held, expected in zip(("keys", "values"), cache.fetch(), (keys, values), strict=True):
        check_close(held, expected, f"{name} in the cache", tolerance=0)
        check_equal(held.dtype, expected.dtype, f"type of the {name} in the cache")


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_task_1_returns_all_tokens_in_order(B: int, dtype: mx.Dtype) -> None:
    cache = TinyKvFullCache()
    chunks = [keys_and_values(L, seed, B=B, dtype=dtype) for seed, L in enumerate(APPENDS)]
    for i, (key, value) in enumerate(chunks):
        returned = update(cache, key, value)
        so_far = [mx.concatenate(pieces, axis=2) for pieces in zip(*chunks[: i + 1], strict=True)]
        new = {"the new keys alone": key, "the new values alone": value} if i else {}
        mistakes = {"the keys": so_far[0], **new}
        for name, actual, expected in zip(("keys", "values"), returned[:2], so_far, strict=True):
            check_close(actual, expected, f"{name} after append {i}", tolerance=0, mistakes=mistakes)
            check_equal(actual.dtype, dtype, f"type of the {name}")


def test_task_1_values_have_a_width_and_a_type_of_their_own() -> None:
    cache = TinyKvFullCache()
    keys, values = normal(1, HEADS, 75, 5, seed=60), normal(1, HEADS, 75, 3, seed=61, dtype=mx.float16)
    for part in (slice(0, 5), slice(5, 75)):
        cache.update_and_fetch(keys[:, :, part], values[:, :, part])
    check_holds(cache, keys, values)


def test_task_1_offset_counts_tokens() -> None:
    cache = TinyKvFullCache()
    check_equal(cache.offset, 0, "offset of a new cache")
    returned = [update(cache, *keys_and_values(L, seed=L))[2] for L in APPENDS]
    mistakes = {"the offset before each append": [0, 3, 4, 11, 12], "the lengths of the appends": [*APPENDS]}
    what = "offset returned by each append, the new tokens included"
    check_equal(returned, [3, 4, 11, 12, 14], what, mistakes)
    check_equal(cache.offset, 14, "offset after all appends")


def test_task_1_the_next_token_goes_where_the_others_end() -> None:
    cache = TinyKvFullCache()
    ends = [cache.offset]
    for L in APPENDS:
        cache.update_and_fetch(*keys_and_values(L, seed=1))
        ends.append(cache.offset)
    cache.rewind(2)
    ends.append(cache.offset)
    mistakes = {"a rewind to 2: rewind(n) forgets n tokens": [0, 3, 4, 11, 12, 14, 2]}
    what = "offset after appends of 3, 1, 7, 1 and 2 and a rewind of 2"
    check_equal(ends, [0, 3, 4, 11, 12, 14, 12], what, mistakes)


def test_task_1_passes_the_mask_through() -> None:
    cache, own_mask = TinyKvFullCache(), mx.zeros((2, 2))
    for i, (L, mask) in enumerate(itertools.product((2, 1), ("causal", own_mask, None, "causal"))):
        returned = update(cache, *keys_and_values(L, seed=i), mask)[3]
        is_same = returned is mask or (
            isinstance(mask, str) and isinstance(returned, str) and returned == mask
        )
        assert is_same, f"mask of append {i}: expected {mask}, got {returned}"


def test_task_1_fetch_returns_what_is_cached() -> None:
    cache = TinyKvFullCache()
    check_holds(cache, *append_all(cache, APPENDS))


def test_task_1_fetch_of_an_empty_cache_is_an_error() -> None:
    with check_value_error():
        TinyKvFullCache().fetch()


def test_task_1_two_caches_share_nothing() -> None:
    first, second = TinyKvFullCache(), TinyKvFullCache()
    expected = append_all(first, APPENDS)
    second.update_and_fetch(*keys_and_values(4, seed=50))
    check_holds(first, *expected)


def test_task_1_state_holds_the_tokens() -> None:
    cache = TinyKvFullCache()
    check_equal(cache.state, [], "state of a new cache")
    expected = append_all(cache, APPENDS)
    for name, held, tokens in zip(("keys", "values"), cache.state, expected, strict=True):
        check_close(held[:, :, : cache.offset], tokens, f"{name} in the state", tolerance=0)


@pytest.mark.parametrize(("L", "num_appends"), [(1, 400), (64, 200)])
def test_task_1_grows_seldom(L: int, num_appends: int) -> None:
    cache, capacities = TinyKvFullCache(), []
    key, value = keys_and_values(L, seed=0, H=1, D=2)
    for _ in range(num_appends):
        cache.update_and_fetch(key, value)
        mx.eval(cache.state)
        capacities.append(cache.state[0].shape[2])
        check_equal(capacities[-1] >= cache.offset, True, "the arrays have room for what is cached")
        is_due = cache.offset < 300 or capacities[-1] <= 4 * cache.offset
        check_equal(is_due, True, f"the room is at most four times the {cache.offset} tokens cached")
    check_equal(cache.state[1].shape[2], capacities[-1], "room in the values, as in the keys")
    num_sizes, most = len(set(capacities)), 2 + math.log2(L * num_appends)
    assert num_sizes <= most, (
        f"{num_appends} appends copied the cache {num_sizes} times, at most {most:.0f} are due; "
        "let the room grow by a factor, not by a fixed step"
    )


def test_task_1_growth_keeps_the_content() -> None:
    cache = TinyKvFullCache()
    check_holds(cache, *append_all(cache, (60, 3, 1, 1, 1, 131, 1, 200)))


def test_task_1_an_append_copies_nothing_of_what_is_cached() -> None:
    cache = cache_of(5000, seed=0)
    key, value = keys_and_values(1, seed=1)
    cache.update_and_fetch(key, value)
    mx.eval(cache.state, key, value)

    def append() -> None:
        cache.update_and_fetch(key, value)
        mx.eval(cache.state)

    num_bytes = peak_bytes(append)
    assert num_bytes < 0.2 * cache.state[0].nbytes, (
        f"appending one token took {num_bytes} bytes of new memory"
    )


def test_task_1_a_rewind_keeps_the_room() -> None:
    cache = cache_of(5000, seed=0)
    room = cache.state[0].shape[2]
    cache.rewind(700)
    mistakes = {"the arrays are cut to what is left, so the next append copies all of it": 4300}
    check_equal(cache.state[0].shape[2], room, "room after a rewind of 700 of 5,000 tokens", mistakes)


@pytest.mark.parametrize("n", [0, 1, 5, 14])
def test_task_1_rewind_forgets_the_last_tokens(n: int) -> None:
    cache = TinyKvFullCache()
    keys, values = append_all(cache, APPENDS)
    cache.rewind(n)
    check_holds(cache, keys[:, :, : 14 - n], values[:, :, : 14 - n])


@pytest.mark.parametrize("n", [0, 1, 5, 14])
def test_task_1_append_after_rewind_overwrites(n: int) -> None:
    cache = TinyKvFullCache()
    kept = [held[:, :, : 14 - n] for held in append_all(cache, APPENDS)]
    cache.rewind(n)
    new = keys_and_values(3, seed=50)
    returned = update(cache, *new)
    expected = [mx.concatenate(pair, axis=2) for pair in zip(kept, new, strict=True)]
    check_holds(cache, *expected)
    check_close(returned[0], expected[0], "keys returned after the rewind", tolerance=0)
    check_equal(returned[2], 14 - n + 3, "offset returned after the rewind")


@pytest.mark.parametrize("n", [-1, 15])
def test_task_1_rewind_of_too_much_is_an_error(n: int) -> None:
    cache = TinyKvFullCache()
    expected = append_all(cache, APPENDS)
    with check_value_error(n=n):
        cache.rewind(n)
    check_holds(cache, *expected)


def test_task_1_release_gives_the_memory_back() -> None:
    cache = cache_of(5000, seed=0)
    mx.eval(cache.state)
    num_bytes = sum(held.nbytes for held in cache.state)
    with memory_use() as memory:
        cache.release()
    check_equal([cache.offset, cache.state], [0, []], "offset and state after release")
    assert -memory.held >= num_bytes, "release did not give the arrays' memory back"


def test_task_1_released_cache_is_usable_again() -> None:
    cache = cache_of(9, seed=0)
    cache.release()
    check_holds(cache, *append_all(cache, (2, 3), B=2, H=3, D=7, dtype=mx.float16))


def misfit(**kwargs: int | mx.Dtype) -> tuple[mx.array, mx.array]:
    """More tokens than there is room for, so that one who makes room before the check is noticed."""
    return keys_and_values(**{"L": 70, "seed": 9, "B": 2, **kwargs})


FITTING = misfit()
MISFITS = {
    "heads": misfit(H=3),
    "one head": misfit(H=1),
    "dimensions": misfit(D=7),
    "type": misfit(dtype=mx.float16),
    "batch": misfit(B=3),
    "one row": misfit(B=1),
    "heads of the value": (FITTING[0], misfit(H=3)[1]),
    "length of the value": (FITTING[0], misfit(L=1)[1]),
    "type of the value": (FITTING[0], misfit(dtype=mx.float16)[1]),
    "dimensions of the value": (FITTING[0], misfit(D=7)[1]),
    "batch of the value": (FITTING[0], misfit(B=3)[1]),
    "number of axes": (FITTING[0][0], FITTING[1][0]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_task_1_what_does_not_fit_is_not_stored(name: str) -> None:
    cache = TinyKvFullCache()
    expected = append_all(cache, APPENDS, B=2)
    with check_value_error():
        cache.update_and_fetch(*MISFITS[name])
    check_holds(cache, *expected)


def test_task_1_error_in_the_first_append_stores_nothing() -> None:
    cache = TinyKvFullCache()
    with check_value_error():
        cache.update_and_fetch(keys_and_values(2, seed=0)[0], keys_and_values(1, seed=0)[1])
    check_equal([cache.offset, cache.state], [0, []], "offset and state after the error")


def test_task_2_one_empty_cache_a_layer() -> None:
    caches = small_model().create_kv_cache()
    check_equal([type(cache).__name__ for cache in caches], ["TinyKvFullCache"] * 3, "the caches of 3 layers")
    check_equal(len({id(cache) for cache in caches}), 3, "different caches")
    check_equal([cache.offset for cache in caches], [0, 0, 0], "offset of each cache")


def test_task_2_each_call_makes_fresh_caches() -> None:
    model = small_model()
    used = model.create_kv_cache()
    model(mx.array([[3, 1, 4]]), 0, used)
    fresh = model.create_kv_cache()
    check_equal([cache.offset for cache in fresh], [0, 0, 0], "offsets of a second request's caches")
    check_equal(len({id(cache) for cache in [*used, *fresh]}), 6, "different caches of two requests")


def test_task_2_a_model_with_fewer_layers_than_its_file_says_has_as_few_caches() -> None:
    whole = small_model()
    model = Qwen3Model(whole.config, whole.embedding, whole.layers[:2], whole.norm)
    check_equal(len(model.create_kv_cache()), 2, "caches of a model whose third layer was left out")


def cached_wrongly(
    model: Qwen3Model, tokens: mx.array, chunks: Sequence[int]
) -> dict[str, Callable[[], mx.array]]:
    """Logits of a model that makes a mistake with its cache."""
    starts = [sum(chunks[:i]) for i in range(len(chunks))]
    pieces = [tokens[:, start : start + size] for start, size in zip(starts, chunks, strict=True)]

    def of_new_tokens() -> mx.array:
        logits = [model(piece, start) for piece, start in zip(pieces, starts, strict=True)]
        return mx.concatenate(logits, axis=1)

    return {"the logits when each piece attends to itself alone": of_new_tokens}


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (5, 7, 1), (1, 12), (12, 1), (2, 3, 8)], ids=str)
def test_task_2_model_with_cache_equals_the_model_without(chunks: tuple[int, ...], B: int) -> None:
    model = small_model()
    tokens = mx.random.randint(0, VOCAB_SIZE, (B, 13), key=mx.random.key(5))
    cache, offset, logits = model.create_kv_cache(), 0, []
    for size in chunks:
        logits.append(model(tokens[:, offset : offset + size], offset, cache))
        offset += size
    actual, mistakes = mx.concatenate(logits, axis=1), cached_wrongly(model, tokens, chunks)
    check_close(actual, model(tokens), "logits with a cache", tolerance=1e-4, mistakes=mistakes)
    check_equal([layer.offset for layer in cache], [13] * 3, "tokens cached in each layer")


def test_task_2_each_layer_caches_its_own_keys() -> None:
    model = small_model()
    cache = model.create_kv_cache()
    model(mx.array([[3, 1, 4, 1, 5]]), 0, cache)
    keys = [layer.fetch()[0] for layer in cache]
    for earlier, later in ((0, 1), (1, 2)):
        assert not mx.allclose(keys[earlier], keys[later]), f"layers {earlier} and {later} hold the same keys"


@pytest.mark.parametrize("offset", [0, 4, 6, [5, 4]], ids=str)
def test_task_2_an_offset_where_the_cache_does_not_end_is_refused(offset: int | list[int]) -> None:
    model, tokens = small_model(), mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    cache = model.create_kv_cache()
    model(tokens, 0, cache)
    with check_value_error(**{"offset": offset, "cache.offset": 5}):
        model(tokens, offset, cache)
    check_equal([layer.offset for layer in cache], [5] * 3, "tokens cached in each layer after the error")


@pytest.mark.parametrize("prompt", ["TINY", "X", pytest.param("LONG" * 75, id="300 tokens")])
def test_task_3_each_token_is_computed_once(prompt: str) -> None:
    model = FakeModel()
    simple_generate_with_kv_cache(model, tokenizer, prompt, greedy, max_tokens=5)
    ids = tokenizer.encode(prompt)
    expected = [[(0, ids)]] + [[(len(ids) + i, [token])] for i, token in enumerate(continuation(ids, 4))]
    check_equal(model.rows, expected, "offset and tokens of each model call")


def test_task_3_same_text_as_without_a_cache() -> None:
    text = simple_generate_with_kv_cache(FakeModel(), tokenizer, PROMPT, greedy, max_tokens=23)
    check_equal(text, simple_generate(FakeModel(), tokenizer, PROMPT, greedy, max_tokens=23), "text")
    check_equal(text, tokenizer.decode(continuation(tokenizer.encode(PROMPT), 23)), "text")


def test_task_3_no_tokens_asked_for_is_no_text() -> None:
    model = FakeModel()
    check_equal(simple_generate_with_kv_cache(model, tokenizer, PROMPT, greedy, 0), "", "text of 0 tokens")
    check_equal(len(model.calls), 0, "model calls for 0 tokens")


def test_task_3_same_sampled_text_on_a_real_model() -> None:
    no_end = FakeTokenizer(eos_token_ids=[])
    texts = [
        generate(small_model(), no_end, PROMPT, make_sampler(0.8, top_p=0.9, seed=11), max_tokens=17)
        for generate in (simple_generate_with_kv_cache, simple_generate)
    ]
    check_equal(texts[0], texts[1], "text sampled with a seed, as without a cache")


def test_task_3_asks_for_the_logits_of_the_last_token_alone() -> None:
    model = FakeModel()
    simple_generate_with_kv_cache(model, tokenizer, PROMPT, greedy, max_tokens=3)
    check_equal([call.logits_to_keep for call in model.calls], [1, 1, 1], "logits_to_keep of each model call")


def test_task_3_uses_one_cache_a_layer() -> None:
    model = FakeModel()
    simple_generate_with_kv_cache(model, tokenizer, PROMPT, greedy, max_tokens=5)
    check_equal(len(model.caches), 2, "caches made for the two layers")
    held = [cache.offset for cache in model.caches]
    assert held in ([8, 8], [0, 0]), (
        f"tokens cached in each layer: expected 4 + 4, or none if released, got {held}"
    )


def test_task_3_end_of_text_as_the_first_token() -> None:
    model = FakeModel(eos_at_length=len(PROMPT))
    text = simple_generate_with_kv_cache(model, tokenizer, PROMPT, greedy, max_tokens=5)
    check_equal(text, "", "text when the first token ends it")
    check_equal(len(model.calls), 1, "number of model calls")


def test_task_3_end_of_text_is_not_part_of_the_text() -> None:
    model = FakeModel(eos_at_length=len(PROMPT) + 3)
    text = simple_generate_with_kv_cache(model, tokenizer, PROMPT, greedy)
    check_equal(text, tokenizer.decode(continuation(tokenizer.encode(PROMPT), 3)), "text before its end")
    check_equal(len(model.calls), 4, "number of model calls")


@pytest.mark.parametrize("which", [0, 2])
def test_task_3_every_end_of_text_id_ends_the_text(which: int) -> None:
    answer = continuation(tokenizer.encode(PROMPT), 4)
    two_ends = FakeTokenizer(eos_token_ids=[answer[which], answer[3]])
    text = simple_generate_with_kv_cache(FakeModel(), two_ends, PROMPT, greedy, max_tokens=6)
    check_equal(
        text, tokenizer.decode(answer[: answer.index(answer[which])]), "text before the end-of-text id"
    )


def test_task_3_samples_with_the_sampler_it_was_given() -> None:
    texts = [
        generate(
            FakeModel(), FakeTokenizer(eos_token_ids=[]), PROMPT, make_sampler(2.0, seed=3), max_tokens=19
        )
        for generate in (simple_generate_with_kv_cache, simple_generate)
    ]
    check_equal(texts[0], texts[1], "text sampled at temperature 2")


def test_task_3_two_prompts_in_a_row_do_not_meet() -> None:
    model = FakeModel()
    texts = [
        simple_generate_with_kv_cache(model, tokenizer, prompt, greedy, max_tokens=5)
        for prompt in ("TINY", "LLM")
    ]
    expected = [tokenizer.decode(continuation(tokenizer.encode(prompt), 5)) for prompt in ("TINY", "LLM")]
    check_equal(texts, expected, "text of each prompt")


def test_task_3_nothing_is_decoded_for_nobody() -> None:
    check_decodes_once(simple_generate_with_kv_cache)


def test_task_3_text_comes_in_pieces() -> None:
    pieces: list[str] = []
    text = simple_generate_with_kv_cache(FakeModel(), tokenizer, PROMPT, greedy, 5, pieces.append)
    check_equal(pieces, list(text), "pieces of the text, one a token")


def test_task_3_empty_prompt_is_an_error() -> None:
    model = FakeModel()
    with check_value_error():
        simple_generate_with_kv_cache(model, tokenizer, "", greedy)
    check_equal(model.calls, [], "model calls")


def test_task_3_an_error_of_the_model_is_not_hidden() -> None:
    with pytest.raises(ModelFailureError):
        simple_generate_with_kv_cache(FakeModel(fail_at=2), tokenizer, PROMPT, greedy, max_tokens=5)
