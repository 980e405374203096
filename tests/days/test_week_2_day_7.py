"""Week 2, day 7: chunked prefill."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.hardware.memory import memory_use
from tests.support.batching import (
    SAMPLED,
    check_all_released,
    check_released,
    ends_within,
    length,
    peak_bytes,
    sampled_alone,
    small_model,
)
from tests.support.check import check_close, check_equal, check_value_error
from tests.support.fakes import EOS, FakeModel, FakeTokenizer, ModelFailureError, continuation, prompt_of
from tests.support.oracles import causal_mask_mistakes
from tiny_llm import (
    AdaptiveChunker,
    BatchGenerator,
    ChunkedPrefillMetrics,
    GenerationResult,
    PriorityScheduler,
    Request,
    RequestTimes,
    SamplingParams,
    batch_generate,
    chunked_attention_mask,
    chunked_prefill_schedule,
    make_sampler,
    num_prefill_steps,
    percentile,
    repaired_prefill_schedule,
    select_optimal_chunk_size,
    simple_generate_with_kv_cache,
)

tokenizer = FakeTokenizer()
endless = FakeTokenizer(eos_token_ids=[])


# Task 1: steps and masks


@pytest.mark.parametrize(
    ("prompt_len", "threshold", "budget", "steps"),
    [
        (100, 32, 64, 4),
        (96, 32, 64, 3),
        (0, 32, 64, 0),
        (100, 0, 64, 2),
        (100, 64, 32, 4),
        (100, 512, 1000, 1),
        (10**18 + 1, 10, 64, 10**17 + 1),
    ],
)
def test_task_1_number_of_steps(prompt_len: int, threshold: int, budget: int, steps: int) -> None:
    actual = num_prefill_steps(prompt_len, threshold, budget)
    check_equal(actual, steps, f"steps for {prompt_len} tokens, threshold {threshold}, budget {budget}")


@given(st.integers(0, 200), st.integers(0, 40), st.integers(1, 40))
def test_task_1_number_of_steps_equals_counting_them(prompt_len: int, threshold: int, budget: int) -> None:
    remaining, steps = prompt_len, 0
    while remaining > 0:
        remaining -= min(remaining, budget, threshold or remaining)
        steps += 1
    actual = num_prefill_steps(prompt_len, threshold, budget)
    check_equal(actual, steps, f"steps for {prompt_len} tokens, threshold {threshold}, budget {budget}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_len": -1},
        {"threshold": -1},
        {"budget": 0},
        {"budget": -5},
        {"budget": 0, "threshold": 0},
        {"budget": 0, "prompt_len": 0},
    ],
)
def test_task_1_steps_that_make_no_sense_are_an_error(wrong: dict[str, int]) -> None:
    (name, value), *_ = wrong.items()
    with check_value_error(**{name: value}):
        num_prefill_steps(**{"prompt_len": 100, "threshold": 32, "budget": 64, **wrong})


def test_task_1_mask_of_a_chunk() -> None:
    x = -np.inf
    expected = [[0, 0, 0, x, x, x, x], [0, 0, 0, 0, x, x, x], [0, 0, 0, 0, 0, x, x]]
    mask = chunked_attention_mask(2, 3, 7)
    mistakes = causal_mask_mistakes(3, 7, first=2)
    what = "mask of 3 queries from position 2, for 7 keys"
    check_close(mask, np.array(expected), what, tolerance=0, mistakes=mistakes)
    check_equal(mask.dtype, mx.float32, "type of the mask")


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 11])
def test_task_1_masks_of_all_chunks_are_the_causal_mask(chunk_size: int) -> None:
    starts = range(0, 11, chunk_size)
    chunks = [chunked_attention_mask(start, min(chunk_size, 11 - start), 11) for start in starts]
    expected = np.where(np.tri(11), 0.0, -np.inf)
    check_close(mx.concatenate(chunks), expected, "masks of the chunks, one above the other", tolerance=0)


def test_task_1_empty_chunk_has_no_rows() -> None:
    check_equal(chunked_attention_mask(4, 0, 9).shape, (0, 9), "shape of the mask of no queries")


@pytest.mark.parametrize("arguments", [(7, 3, 9), (10, 0, 9), (0, 10, 9), (-1, 3, 9), (2, -1, 9)], ids=str)
def test_task_1_chunk_that_is_not_within_the_tokens_is_an_error(arguments: tuple[int, int, int]) -> None:
    names = ("chunk_start", "chunk_size", "total_length")
    with check_value_error(**dict(zip(names, arguments, strict=True))):
        chunked_attention_mask(*arguments)


# Task 2: one chunk per call


def chunks_of(prompt: Sequence[int], step: int) -> list[tuple[int, list[int]]]:
    """(offset, tokens) of each chunk."""
    return [(start, list(prompt[start : start + step])) for start in range(0, len(prompt), step)]


def prefill_all(request: Request) -> list[int]:
    """Call try_prefill until the prefill is done; return what each call returned."""
    computed = []
    for _ in range(len(request.prompt_ids)):
        if request.is_prefill_done:
            break
        computed.append(request.try_prefill())
    check_equal(request.is_prefill_done, True, "the prefill is done after as many calls as tokens")
    return computed


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 8, 128])
@pytest.mark.parametrize("length", [1, 2, 6, 7, 12])
def test_task_2_each_chunk_is_computed_once_and_in_order(length: int, step: int) -> None:
    model, prompt = FakeModel(), prompt_of(length)
    computed = prefill_all(Request(model, tokenizer, prompt, step))
    chunks = chunks_of(prompt, step)
    check_equal(computed, [len(tokens) for _, tokens in chunks], "tokens computed by each call")
    mistakes = {
        "each chunk right but for its offset, which is always 0": [[(0, tokens)] for _, tokens in chunks],
        "each chunk right but for its offset, which is that of its end": [
            [(start + len(tokens), tokens)] for start, tokens in chunks
        ],
        "the head of the prompt again in each chunk": [
            [(start, prompt[: len(tokens)])] for start, tokens in chunks
        ],
        "the tokens of each chunk in reverse": [[(start, tokens[::-1])] for start, tokens in chunks],
        "everything up to here in each chunk": [
            [(start, prompt[: start + len(tokens)])] for start, tokens in chunks
        ],
        "the whole prompt at once": [[(0, prompt)]],
    }
    check_equal(model.rows, [[chunk] for chunk in chunks], "offset and tokens of each model call", mistakes)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 8])
def test_task_2_the_first_token_is_that_of_the_whole_prompt(step: int) -> None:
    request = Request(FakeModel(), tokenizer, prompt_of(7), step)
    prefill_all(request)
    mistakes = {
        "no token, not even one sampled at the last chunk": 0,
        "a token sampled at every chunk": len(chunks_of(prompt_of(7), step)),
    }
    check_equal(len(request.token_ids), 1, "number of tokens after the prefill", mistakes)
    check_equal(request.next_token, continuation(prompt_of(7), 1)[0], "first token")
    check_equal(request.is_done, False, "is_done after the first token")


FIRST = continuation(prompt_of(7), 1)
LAST_AT_ONCE: dict[str, tuple[int | None, int | None, dict[str, Any], list[int], str]] = {
    # eos_at_length, max_seq_len, parameters, and then tokens and reason
    "the end of text": (7, None, {}, [], "stop"),
    "the only one wanted": (None, None, {"max_tokens": 1}, FIRST, "length"),
    "no room for it": (None, 7, {}, [], "length"),
    "no room for another": (None, 8, {}, FIRST, "length"),
    "a stop string": (None, None, {"stop": (tokenizer.decode(FIRST),)}, [], "stop"),
}


@pytest.mark.parametrize("step", [3, 7])
@pytest.mark.parametrize("name", LAST_AT_ONCE)
def test_task_2_the_first_token_may_end_the_answer(name: str, step: int) -> None:
    eos_at_length, max_seq_len, options, tokens, reason = LAST_AT_ONCE[name]
    model, params = FakeModel(eos_at_length), SamplingParams(**options)
    request = Request(model, tokenizer, prompt_of(7), step, max_seq_len=max_seq_len, params=params)
    prefill_all(request)
    result = request.result()
    found = (result.text, result.finish_reason)
    check_equal(found, (tokenizer.decode(tokens), reason), "text and reason")
    if "stop" not in name:  # a stop string is cut from the text alone
        check_equal(list(result.token_ids), tokens, "tokens")


def test_task_2_offset_follows_the_chunks() -> None:
    request = Request(FakeModel(), tokenizer, prompt_of(7), 3)
    seen = [(request.offset, request.is_prefill_done)]
    for _ in range(3):
        request.try_prefill()
        seen.append((request.offset, request.is_prefill_done))
    expected = [(0, False), (3, False), (6, False), (7, True)]
    mistakes = {"a step more for each chunk, however long it is": [*expected[:3], (9, True)]}
    check_equal(seen, expected, "offset, and whether the prefill is done", mistakes)


@pytest.mark.parametrize("step", [2, 3, 7])
def test_task_2_logits_are_read_only_at_the_last_chunk(step: int) -> None:
    model = FakeModel()
    prefill_all(Request(model, tokenizer, prompt_of(7), step))
    num_chunks = len(chunks_of(prompt_of(7), step))
    expected = [0] * (num_chunks - 1) + [1]
    mistakes = {
        "logits asked for at every chunk": [1] * num_chunks,
        "the last chunk missed": [0] * num_chunks,
    }
    kept = [call.logits_to_keep for call in model.calls]
    check_equal(kept, expected, "logits_to_keep of each model call", mistakes)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_task_2_samples_once_and_at_the_last_chunk(step: int) -> None:
    samples: list[int] = []

    def sampler(logprobs: mx.array) -> mx.array:
        check_equal(logprobs.shape, (1, 61), "shape of what the sampler gets")
        total = mx.exp(logprobs).sum().item()
        check_equal(round(total, 3), 1.0, "sum of the probabilities that the sampler gets")
        samples.append(request.offset)
        return mx.array([23])

    request = Request(FakeModel(), tokenizer, prompt_of(7), step)
    request.sampler = sampler
    for _ in range(len(chunks_of(prompt_of(7), step)) - 1):
        request.try_prefill()
        check_equal(samples, [], "offsets at which the sampler was called before the last chunk")
        check_equal(request.token_ids, [], "tokens before the last chunk")
    request.try_prefill()
    check_equal(len(samples), 1, "number of samples after the last chunk")
    check_equal(request.next_token, 23, "first token, as sampled")


def test_task_2_no_token_to_decode_before_the_last_chunk() -> None:
    request = Request(FakeModel(), tokenizer, prompt_of(7), 3)
    request.try_prefill()
    with check_value_error(prompt_idx=0):
        _ = request.next_token
    check_equal([request.is_done, request.text()], [False, ""], "is done, and its text")


@pytest.mark.parametrize("first", ["decoding", "done"])
def test_task_2_a_complete_prefill_is_an_error(first: str) -> None:
    model = FakeModel(eos_at_length=7 if first == "done" else None)
    request = Request(model, tokenizer, prompt_of(7), 4, prompt_idx=5)
    prefill_all(request)
    tokens = list(request.token_ids)
    with check_value_error(prompt_idx=5):
        request.try_prefill()
    check_equal([len(model.calls), request.offset], [2, 7], "model calls, and offset after the error")
    check_equal(request.token_ids, tokens, "tokens after the error")


@pytest.mark.parametrize("step", [1, 3, 4, 13])
@pytest.mark.parametrize(("model", "tolerance"), [(FakeModel, 0), (small_model, 1e-4)])
def test_task_2_every_layer_caches_the_whole_prompt(
    model: Callable[[], Any], tolerance: float, step: int
) -> None:
    request, whole = (Request(model(), endless, prompt_of(13), size) for size in (step, 13))
    prefill_all(request)
    whole.try_prefill()
    check_equal(request.next_token, whole.next_token, "first token")
    for i, (layer, expected) in enumerate(zip(request.cache, whole.cache, strict=True)):
        for name, held, of_whole in zip(("keys", "values"), layer.fetch(), expected.fetch(), strict=True):
            check_close(held, of_whole, f"{name} of layer {i}", tolerance)


@pytest.mark.parametrize("failure", [ModelFailureError, KeyboardInterrupt])
@pytest.mark.parametrize("where", [0, 1, 2, "sampler"])
def test_task_2_after_an_error_the_prefill_starts_again(
    where: int | str, failure: type[BaseException]
) -> None:
    def broken(logprobs: mx.array) -> mx.array:
        raise failure

    model = FakeModel(fail_at=None if where == "sampler" else where, failure=failure)
    request = Request(model, tokenizer, prompt_of(7), 3)
    sampler, request.sampler, caches = request.sampler, broken, request.cache
    with pytest.raises(failure):
        prefill_all(request)
    check_equal(len(model.calls), 3 if where == "sampler" else where + 1, "model calls before the error")
    check_released(request.cache, "layers that still hold keys after the error")
    check_equal(request.cache is caches, True, "the request's own list of caches is the same")
    check_equal([request.offset, request.token_ids], [0, []], "offset and tokens after the error")
    model.calls.clear()
    model.fail_at, request.sampler = None, sampler
    check_equal(prefill_all(request), [3, 3, 1], "tokens computed by each call of the second try")
    chunks = [[chunk] for chunk in chunks_of(prompt_of(7), 3)]
    check_equal(model.rows, chunks, "model calls of the second try")
    check_equal(request.token_ids, FIRST, "first token after the second try")


def cache_bytes(request: Request) -> int:
    return sum(held.nbytes for layer in request.cache for held in layer.state)


def test_task_2_each_chunk_is_evaluated_before_the_next() -> None:
    request = Request(small_model(), endless, prompt_of(96), 16)
    for chunk in range(6):
        request.try_prefill()
        left = peak_bytes(lambda: mx.eval([layer.state for layer in request.cache]))
        check_equal(left, 0, f"bytes still to compute after chunk {chunk}")


def test_task_2_nothing_but_the_cache_is_kept() -> None:
    model = small_model(vocab_size=1009)
    first = Request(model, endless, prompt_of(16), 16)
    first.try_prefill()  # what the model computes once, such as rotations
    with memory_use(reuses_buffers=False) as memory:
        request = Request(model, endless, prompt_of(480), 16)
        prefill_all(request)
    kept = memory.held - cache_bytes(request)
    assert kept < 20_000, f"{kept} bytes are held beside the cache after 30 chunks"


def test_task_2_peak_memory_does_not_grow_with_the_number_of_chunks(on_cpu: None) -> None:
    model = small_model(vocab_size=1009)

    def beside_the_cache(step: int) -> int:
        request = Request(model, endless, prompt_of(480), step)
        return peak_bytes(lambda: prefill_all(request)) - cache_bytes(request)

    peaks = {step: beside_the_cache(step) for step in (480, 60, 12)}
    assert peaks[12] <= 0.5 * peaks[480], f"peak memory beside the cache for each chunk size: {peaks}"
    assert peaks[12] <= 1.2 * peaks[60], f"peak memory beside the cache for each chunk size: {peaks}"


# Task 3: three phases


@dataclass(frozen=True)
class Job:
    """A prompt, and the most tokens to answer it with."""

    prompt: list[int]
    max_tokens: int

    def sampled(self, eos_at_length: int | None) -> list[int]:
        """All that is sampled for it when it runs alone, an end-of-text id included."""
        tokens = continuation(self.prompt, self.max_tokens)
        if eos_at_length is None or not 0 <= eos_at_length - len(self.prompt) < self.max_tokens:
            return tokens
        return [*tokens[: eos_at_length - len(self.prompt)], EOS]


Rows = list[tuple[int, list[int]]]
Timeline = list[tuple[list[Rows], list[int]]]
"""For each step the rows of its model calls, in order, and the requests that finished in it."""


def simulate(jobs: list[Job], batch_size: int, step: int, eos_at_length: int | None = None) -> Timeline:
    """The three phases on paper."""
    sampled = [job.sampled(eos_at_length) for job in jobs]
    num_sampled = [0] * len(jobs)
    waiting, slots = deque(range(len(jobs))), [-1] * batch_size
    pending, num_computed = -1, 0
    timeline: Timeline = []
    while waiting or pending >= 0 or max(slots) >= 0:
        calls: list[Rows] = []
        finished: list[int] = []
        if pending < 0 and waiting:
            pending, num_computed = waiting.popleft(), 0
        prompt = jobs[pending].prompt
        if pending >= 0 and num_computed < len(prompt):
            chunk = prompt[num_computed : num_computed + step]
            calls.append([(num_computed, chunk)])
            num_computed += len(chunk)
            if num_computed == len(prompt):
                num_sampled[pending] = 1
                if num_sampled[pending] == len(sampled[pending]):
                    finished.append(pending)
                    pending = -1
        active = [i for i in slots if i >= 0]
        if active:
            newest = [
                (len(jobs[i].prompt) + num_sampled[i] - 1, [sampled[i][num_sampled[i] - 1]]) for i in active
            ]
            calls.append(sorted(newest))
        for i in active:
            num_sampled[i] += 1
            if num_sampled[i] == len(sampled[i]):
                finished.append(i)
                slots[slots.index(i)] = -1
        if pending >= 0 and num_computed == len(prompt) and -1 in slots:
            slots[slots.index(-1)] = pending
            pending = -1
        timeline.append((calls, sorted(finished)))
    return timeline


def make_generator(batch_size: int, step: int, **options: Any) -> BatchGenerator:
    return BatchGenerator(FakeModel(**options), tokenizer, batch_size, step, max_seq_len=64)


def run(generator: BatchGenerator, max_steps: int = 500) -> tuple[Timeline, list[GenerationResult]]:
    """Step until there is no work left."""
    timeline: Timeline = []
    results: list[GenerationResult] = []
    while generator.has_work:
        if len(timeline) == max_steps:
            pytest.fail(f"there is still work after {max_steps} steps")
        before = len(generator.model.calls)
        finished = generator.step()
        timeline.append((generator.model.rows[before:], sorted(result.prompt_idx for result in finished)))
        results += finished
    return timeline, results


def test_task_3_a_lone_prompt_of_several_chunks() -> None:
    generator = make_generator(batch_size=2, step=3)
    generator.submit(prompt_of(7), length(3))
    first, second, third = continuation(prompt_of(7), 3)
    timeline, results = run(generator)
    chunks = [([[chunk]], []) for chunk in chunks_of(prompt_of(7), 3)]
    decodes = [([[(7, [first])]], []), ([[(8, [second])]], [0])]
    mistakes = {
        "promote before decode: a request decodes in the step that completed its prefill": [
            *chunks[:-1],
            ([*chunks[-1][0], *decodes[0][0]], []),
            decodes[1],
        ],
        "the whole prompt in one step: a step computes one chunk": [
            ([call for calls, _ in chunks for call in calls], []),
            *decodes,
        ],
    }
    check_equal(timeline, [*chunks, *decodes], "model calls and finished, by step", mistakes)
    check_equal(
        results,
        [GenerationResult(0, tokenizer.decode([first, second, third]), (first, second, third), "length")],
        "results",
    )


def test_task_3_prefill_phase_computes_one_chunk_of_one_request() -> None:
    generator = make_generator(batch_size=2, step=3)
    requests = [generator.submit(prompt_of(size, size)) for size in (7, 5)]
    progress = [generator.prefill_phase() for _ in range(3)]
    check_equal(progress, [True] * 3, "prefill_phase made progress")
    expected = [[chunk] for chunk in chunks_of(prompt_of(7, 7), 3)]
    check_equal(generator.model.rows, expected, "offset and tokens of each model call")
    check_equal([request.offset for request in requests], [7, 0], "offset of each request")
    check_equal(
        [generator.prefilling, list(generator.waiting)], [requests[0], requests[1:]], "pending and waiting"
    )


def test_task_3_prefill_waits_while_a_finished_prefill_waits() -> None:
    generator = make_generator(batch_size=1, step=4)
    for seed in range(3):
        generator.submit(prompt_of(4, seed), length(6))
    generator.step()
    generator.step()
    what = "a prompt is prefilled even while no slot is free"
    check_equal(generator.prefilling is not None and generator.prefilling.is_prefill_done, True, what)
    generator.model.calls.clear()
    check_equal([generator.prefill_phase() for _ in range(3)], [False] * 3, "prefill_phase made progress")
    check_equal([generator.promote_phase(), generator.model.calls], [False, []], "promoted, and model calls")
    check_equal(
        [generator.prefilling.prompt_idx, len(generator.waiting)], [1, 1], "pending, and number waiting"
    )


def test_task_3_nothing_to_prefill() -> None:
    generator = make_generator(batch_size=1, step=4)
    check_equal([generator.prefill_phase(), generator.model.calls], [False, []], "progress, and model calls")
    check_equal([generator.step(), generator.has_work], [[], False], "finished, and has work")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_task_3_done_at_its_first_token_takes_no_slot(reason: str) -> None:
    generator = make_generator(batch_size=1, step=3, eos_at_length=7 if reason == "stop" else None)
    request = generator.submit(prompt_of(7), length(4 if reason == "stop" else 1))
    timeline, results = run(generator)
    check_equal(len(timeline), 3, "steps for three chunks")
    check_equal([result.finish_reason for result in results], [reason], "why it is done")
    check_released(generator.cache, "layers of the slots' cache, never used, that hold keys")
    check_released(request.cache, "layers of the request's cache that still hold keys")
    check_equal(generator.prefilling, None, "pending request")


def test_task_3_decodes_go_on_between_the_chunks_of_a_long_prompt() -> None:
    generator = make_generator(batch_size=3, step=4)
    for seed in range(2):
        generator.submit(prompt_of(3, seed), length(40))
    for _ in range(2):
        generator.step()
    generator.submit(prompt_of(50), length(2))
    mistakes = {"decode before prefill: the chunk of a step comes first": [2, 1]}
    for chunk in chunks_of(prompt_of(50), 4):
        generator.model.calls.clear()
        generator.step()
        rows = generator.model.rows
        what = "rows of the model calls of a step: a chunk, two decodes"
        check_equal([len(call) for call in rows], [1, 2], what, mistakes)
        check_equal(rows[0], [chunk], "offset and tokens of the chunk")


def test_task_3_a_new_request_joins_while_others_decode() -> None:
    generator = make_generator(batch_size=2, step=4)
    jobs = [Job(prompt_of(3, 1), 9), Job(prompt_of(9, 2), 4), Job(prompt_of(5, 3), 3)]
    results = []
    for job in jobs:
        generator.submit(job.prompt, length(job.max_tokens))
        for _ in range(2):
            results += generator.step()
    results += run(generator)[1]
    answers = {result.prompt_idx: list(result.token_ids) for result in results}
    expected = {i: continuation(job.prompt, job.max_tokens) for i, job in enumerate(jobs)}
    check_equal(answers, expected, "tokens of each request")


def generate_all(
    prompts: Sequence[str | list[int]], model: FakeModel | None = None, **options: Any
) -> list[GenerationResult]:
    with ends_within(20):
        return batch_generate(model or FakeModel(), options.pop("tokenizer", tokenizer), prompts, **options)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("step", [1, 3, 128])
def test_task_3_results_come_in_the_order_of_the_prompts(batch_size: int, step: int) -> None:
    prompts = [prompt_of(size, seed) for seed, size in enumerate((11, 3, 7, 1, 9, 4))]
    amounts = [9, 2, 6, 1, 3, 7]
    results = generate_all(
        prompts, params=[length(n) for n in amounts], batch_size=batch_size, prefill_step=step
    )
    answers = [continuation(prompt, n) for prompt, n in zip(prompts, amounts, strict=True)]
    expected = [
        GenerationResult(i, tokenizer.decode(answer), tuple(answer), "length")
        for i, answer in enumerate(answers)
    ]
    check_equal(results, expected, "results")


def test_task_3_text_prompts_and_stop_strings() -> None:
    params = [length(3), length(9)]
    whole = [tokenizer.decode(continuation(tokenizer.encode(text), 9)) for text in ("TINY", "LLM")]
    params[1] = SamplingParams(stop=(whole[1][4:6],))
    found = [(each.text, each.finish_reason) for each in generate_all(["TINY", "LLM"], params=params)]
    expected = [(whole[0][:3], "length"), (whole[1][: whole[1].index(whole[1][4:6])], "stop")]
    check_equal(found, expected, "text of each prompt, and why it is done")


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("name", SAMPLED)
def test_task_3_params_for_each_prompt_or_for_all_give_what_they_give_alone(
    name: str, container: type[list[Any] | tuple[Any, ...]]
) -> None:
    params = [SamplingParams(**options) for options in SAMPLED[name]]
    prompts = [prompt_of(5), prompt_of(5), prompt_of(3)]
    given_params = container(params) if len(params) == 3 else params[0]
    results = generate_all(prompts, tokenizer=endless, params=given_params, batch_size=2, prefill_step=3)
    jobs = zip(prompts, params if len(params) == 3 else params * 3, strict=True)
    expected = [sampled_alone(prompt, each, each.max_tokens or 0) for prompt, each in jobs]
    check_equal([list(result.token_ids) for result in results], expected, "tokens of each prompt, as alone")


def test_task_3_real_model_answers_as_each_prompt_alone() -> None:
    prompts = [prompt_of(size, seed) for seed, size in enumerate((11, 3, 17, 6))]
    results = generate_all(
        prompts, small_model(), tokenizer=endless, params=length(8), batch_size=2, prefill_step=4
    )
    for prompt, result in zip(prompts, results, strict=True):
        text = simple_generate_with_kv_cache(
            small_model(), endless, tokenizer.decode(prompt), make_sampler(0), max_tokens=8
        )
        check_equal(result.text, text, f"text of the prompt of {len(prompt)} tokens")


@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(7, 0), (8, 1), (12, 5)])
def test_task_3_max_seq_len_bounds_prompt_and_answer(max_seq_len: int, num_tokens: int) -> None:
    results = generate_all([prompt_of(7), prompt_of(2)], max_seq_len=max_seq_len, prefill_step=3)
    expected = [
        tuple(continuation(prompt_of(7), num_tokens)),
        tuple(continuation(prompt_of(2), max_seq_len - 2)),
    ]
    check_equal([result.token_ids for result in results], expected, "tokens of each prompt")
    check_equal([result.finish_reason for result in results], ["length"] * 2, "why they are done")


def test_task_3_no_prompts() -> None:
    check_equal(generate_all([]), [], "results of no prompts")


BAD_PROMPTS = {"too long": (prompt_of(12), {"num_tokens": 12, "max_seq_len": 11}), "empty": ([], {})}


@pytest.mark.parametrize("name", BAD_PROMPTS)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_task_3_a_bad_prompt_among_others_is_an_error_at_once(name: str, position: int) -> None:
    model = FakeModel()
    prompt, values = BAD_PROMPTS[name]
    prompts = [prompt_of(5), prompt_of(3)]
    prompts.insert(position, prompt)
    with check_value_error(**values):
        generate_all(prompts, model, max_seq_len=11)
    check_equal(model.calls, [], "model calls")


def test_task_3_params_must_match_the_prompts() -> None:
    for num_params in (0, 1):
        with check_value_error(**{"len(prompts)": 2, "len(params)": num_params}):
            generate_all([prompt_of(5), prompt_of(3)], params=[length(3)] * num_params)


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_task_3_a_refused_prompt_does_not_harm_the_others(name: str) -> None:
    generator = BatchGenerator(FakeModel(), tokenizer, 2, 3, max_seq_len=11)
    generator.submit(prompt_of(5), length(4))
    generator.step()
    prompt, values = BAD_PROMPTS[name]
    with check_value_error(**values):
        generator.submit(prompt)
    check_equal(len(generator.model.caches), 2, "caches made: those of the first request")
    generator.submit(prompt_of(4), length(3))
    answers = {result.prompt_idx: list(result.token_ids) for result in run(generator)[1]}
    expected = {0: continuation(prompt_of(5), 4), 1: continuation(prompt_of(4), 3)}
    check_equal(answers, expected, "tokens of each request that was accepted")


@pytest.mark.parametrize("failure", [ModelFailureError, KeyboardInterrupt])
@pytest.mark.parametrize("fail_at", range(8))
def test_task_3_an_error_in_any_call_releases_everything(fail_at: int, failure: type[BaseException]) -> None:
    generator = make_generator(batch_size=2, step=3, fail_at=fail_at, failure=failure)
    for seed, size in enumerate((4, 8, 5)):
        generator.submit(prompt_of(size, seed), length(9))
    with pytest.raises(failure):
        run(generator)
    check_equal(len(generator.model.calls), fail_at + 1, "model calls")
    check_all_released(generator.model, generator)
    for call in (generator.step, generator.prefill_phase, lambda: generator.submit(prompt_of(3))):
        with check_value_error():
            call()


@pytest.mark.parametrize("num_steps", [1, 4])
def test_task_3_the_end_of_a_with_block_releases_everything(num_steps: int) -> None:
    with make_generator(batch_size=2, step=3) as generator:
        for seed in range(3):
            generator.submit(prompt_of(4, seed), length(9))
        for _ in range(num_steps):
            generator.step()
    check_all_released(generator.model, generator)


@pytest.mark.parametrize("where", ["model", "between two phases"])
def test_task_3_batch_generate_releases_everything_after_ctrl_c(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: BatchGenerator) -> None:
        raise KeyboardInterrupt

    model = FakeModel(fail_at=5, failure=KeyboardInterrupt)
    if where != "model":
        monkeypatch.setattr(BatchGenerator, "promote_phase", interrupt)
    with pytest.raises(KeyboardInterrupt):
        generate_all([prompt_of(4), prompt_of(8), prompt_of(5)], model, batch_size=2, prefill_step=3)
    check_released(model.caches, "caches of the requests, two layers each, that still hold keys")


@settings(max_examples=40)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 13), st.integers(0, 9), st.integers(1, 6)), max_size=6),
    batch_size=st.integers(1, 4),
    step=st.integers(1, 6),
    eos_at_length=st.none() | st.integers(3, 15),
)
def test_task_3_timeline_equals_the_three_phases_on_paper(
    jobs: list[tuple[int, int, int]], batch_size: int, step: int, eos_at_length: int | None
) -> None:
    all_jobs = [Job(prompt_of(size, seed), max_tokens) for size, seed, max_tokens in jobs]
    generator = make_generator(batch_size, step, eos_at_length=eos_at_length)
    for job in all_jobs:
        generator.submit(job.prompt, length(job.max_tokens))
    timeline, results = run(generator)
    check_equal(
        timeline, simulate(all_jobs, batch_size, step, eos_at_length), "model calls and finished, by step"
    )
    sampled = [job.sampled(eos_at_length) for job in all_jobs]
    expected = [(tokens[:-1], "stop") if tokens[-1] == EOS else (tokens, "length") for tokens in sampled]
    answers = {result.prompt_idx: (list(result.token_ids), result.finish_reason) for result in results}
    check_equal(answers, dict(enumerate(expected)), "tokens of each request, and why it is done")
    what = "caches of the requests, two layers each, that still hold keys"
    check_released(generator.model.caches, what)


# Task 4: chunk sizes

PLENTY = 10**9


@pytest.mark.parametrize(
    ("sequence_length", "active", "batch_size", "expected"),
    [
        (1000, 0, 5, 128),
        (1000, 4, 5, 128),
        (1000, 5, 5, 64),
        (1000, 8, 10, 128),
        (1000, 9, 10, 64),
        (2048, 0, 5, 128),
        (2049, 4, 5, 256),
        (2049, 5, 5, 64),
        (5000, 1, 1, 64),
        (127, 0, 5, 127),
        (63, 5, 5, 63),
        (1, 0, 5, 1),
    ],
)
def test_task_4_chunk_size_by_rule_of_thumb(
    sequence_length: int, active: int, batch_size: int, expected: int
) -> None:
    actual = select_optimal_chunk_size(sequence_length, PLENTY, active, batch_size, 1000)
    what = f"chunk size for {sequence_length} tokens beside {active} decodes in {batch_size} slots"
    check_equal(actual, expected, what)


@pytest.mark.parametrize(
    ("memory", "per_token", "expected"),
    [
        (1000, 1000, 1),
        (1999, 1000, 1),
        (77_999, 1000, 77),
        (128_999, 1000, 128),
        (200_000, 1000, 128),
        (77, 1, 77),
    ],
)
def test_task_4_chunk_fits_in_the_memory(memory: int, per_token: int, expected: int) -> None:
    actual = select_optimal_chunk_size(1000, memory, 0, 5, per_token)
    check_equal(actual, expected, f"chunk size for {memory} bytes, {per_token} a token")


def test_task_4_memory_counts_the_tokens_of_qwen3_0_6b() -> None:
    per_token = 28 * 8 * 128 * 2 * 2
    actual = [select_optimal_chunk_size(1000, memory, 0) for memory in (77 * per_token, 77 * per_token - 1)]
    check_equal(actual, [77, 76], "chunk sizes for the memory of 77 tokens, and for a byte less")


@pytest.mark.parametrize(
    "arguments",
    [
        (0, PLENTY, 0),
        (-3, PLENTY, 0),
        (9, PLENTY, -1),
        (9, PLENTY, 0, 0),
        (9, PLENTY, 0, 5, 0),
        (9, 999, 0, 5, 1000),
        (9, 0, 0),
    ],
)
def test_task_4_no_chunk_size_for_nonsense(arguments: tuple[int, ...]) -> None:
    with check_value_error():
        select_optimal_chunk_size(*arguments)


def chunker_at(tokens_per_second: int, target: float = 0.0625, **options: Any) -> AdaptiveChunker:
    """A chunker that has measured one chunk at this speed."""
    chunker = AdaptiveChunker(target, **options)
    chunker.record(tokens_per_second // 8, 0.125)
    return chunker


MEASURED = {  # tokens per second, target in s, active decodes, and the chunk size
    "nobody decodes, so nobody waits": (1024, 0.0625, 0, 512),
    "a full batch leaves half the target": (1024, 0.0625, 4, 32),
    "a faster machine": (4096, 0.0625, 4, 128),
    "a shorter target": (2048, 0.03125, 4, 32),
    "a longer target": (2048, 0.125, 4, 128),
    "a quarter of the slots takes off an eighth": (2048, 0.0625, 1, 112),
    "half of the slots takes off a quarter": (2048, 0.0625, 2, 96),
    "three of four take off three eighths": (2048, 0.0625, 3, 80),
    "more decodes than slots count as a full batch": (2048, 0.0625, 9, 64),
    "half a token that fits counts until the end": (2072, 0.0625, 2, 97),
    "half a token at the end does not count": (2072, 0.0625, 4, 64),
}


@pytest.mark.parametrize("name", MEASURED)
def test_task_4_a_chunk_takes_what_the_target_leaves(name: str) -> None:
    speed, target, decodes, expected = MEASURED[name]
    fits = int(speed * target)
    mistakes = {
        "all that fits in the target, ignoring the decodes": fits,
        "half, however few decode": fits // 2,
        "one more: the size is rounded down, not to the nearest": expected + 1,
        "rounded down twice: only the size at the end is": int(fits * (1 - min(decodes, 4) / 8)),
    }
    what = f"chunk size beside {decodes} decodes in 4 slots, where {fits} tokens fit in the target"
    check_equal(chunker_at(speed, target).chunk_size(decodes, 4), expected, what, mistakes)


@pytest.mark.parametrize(("decodes", "expected"), [(0, 96), (1, 84), (4, 48)])
def test_task_4_nothing_measured_begins_with_the_initial_size(decodes: int, expected: int) -> None:
    what = f"chunk size beside {decodes} decodes in 4 slots, nothing measured, initial size 96"
    actual = AdaptiveChunker(initial_chunk_size=96).chunk_size(decodes, 4)
    check_equal(actual, expected, what, {"the initial size, ignoring the decodes": 96})


@pytest.mark.parametrize(("speed", "decodes", "expected"), [(64, 4, 24), (65536, 4, 200), (64, 0, 200)])
def test_task_4_size_stays_within_its_bounds(speed: int, decodes: int, expected: int) -> None:
    actual = chunker_at(speed, min_chunk_size=24, max_chunk_size=200).chunk_size(decodes, 4)
    what = f"chunk size at {speed} tokens per second beside {decodes} decodes, bounded by 24 and 200"
    check_equal(actual, expected, what)


def test_task_4_the_bounds_may_leave_a_single_size() -> None:
    chunker = AdaptiveChunker(min_chunk_size=1, max_chunk_size=1, initial_chunk_size=1)
    check_equal([chunker.chunk_size(n, 4) for n in (0, 4)], [1, 1], "chunk sizes bounded by 1 and 1")


@given(
    records=st.lists(st.tuples(st.integers(1, 600), st.floats(1e-4, 2.0)), max_size=12),
    batch_size=st.integers(1, 9),
    target=st.floats(1e-3, 1.0),
    factor=st.floats(1.0, 10.0),
)
def test_task_4_more_decodes_or_a_slower_machine_never_give_a_larger_chunk(
    records: list[tuple[int, float]], batch_size: int, target: float, factor: float
) -> None:
    fast, slow = (AdaptiveChunker(target, min_chunk_size=5, max_chunk_size=400) for _ in range(2))
    for tokens, seconds in records:
        fast.record(tokens, seconds)
        slow.record(tokens, seconds * factor)
    sizes = [fast.chunk_size(n, batch_size) for n in range(batch_size + 2)]
    check_equal(sizes, sorted(sizes, reverse=True), "chunk sizes as more decode, sorted")
    check_equal(all(5 <= size <= 400 for size in sizes), True, f"chunk sizes {sizes} within 5 and 400")
    for n, size in enumerate(sizes):
        check_equal(slow.chunk_size(n, batch_size) <= size, True, "a slower machine gets no larger chunk")


def test_task_4_chunk_times_are_weighed_by_their_tokens() -> None:
    chunker = AdaptiveChunker(0.0625)
    chunker.record(256, 0.125)
    chunker.record(16, 0.0078125 + 0.0078125)
    chunker.record(16, 0.5 - 0.125 - 0.015625)
    check_equal(chunker.chunk_size(4, 4), int(0.0625 * 288 / 0.5 / 2), "chunk size for 288 tokens in 0.5 s")


@pytest.mark.parametrize(
    ("window", "expected"), [(3, [32, 32, 32, 64, 96, 128]), (1, [32, 32, 32, 128, 128, 128])]
)
def test_task_4_the_window_forgets(window: int, expected: list[int]) -> None:
    chunker, sizes = AdaptiveChunker(0.0625, window=window), []
    for tokens in (128, 128, 128, 512, 512, 512):
        chunker.record(tokens, 0.125)
        sizes.append(chunker.chunk_size(4, 4))
    check_equal(sizes, expected, f"chunk size after each chunk, with a window of {window}")


@pytest.mark.parametrize("record", [(0, 0.1), (-2, 0.1), (5, 0.0), (5, -0.1), (5, float("nan"))])
def test_task_4_an_impossible_measurement_is_an_error(record: tuple[int, float]) -> None:
    chunker = chunker_at(2048)
    with check_value_error():
        chunker.record(*record)
    check_equal(chunker.chunk_size(4, 4), 64, "chunk size after the error")


@pytest.mark.parametrize(
    "options",
    [
        {"min_chunk_size": 0},
        {"min_chunk_size": 200},
        {"max_chunk_size": 100},
        {"initial_chunk_size": 8},
        {"decode_latency_target": 0},
        {"decode_latency_target": float("nan")},
        {"window": 0},
    ],
    ids=str,
)
def test_task_4_options_that_make_no_sense_are_an_error(options: dict[str, int]) -> None:
    with check_value_error():
        AdaptiveChunker(**options)


@pytest.mark.parametrize("decodes_and_slots", [(0, 0), (1, -1), (-1, 4)])
def test_task_4_no_slots_or_fewer_than_no_decodes_are_an_error(decodes_and_slots: tuple[int, int]) -> None:
    chunker = chunker_at(2048)
    with check_value_error(
        **{"num_active_decodes": decodes_and_slots[0], "batch_size": decodes_and_slots[1]}
    ):
        chunker.chunk_size(*decodes_and_slots)


# Task 5: metrics


def recorded(
    tokens: dict[int, tuple[float, ...]], arrivals: dict[int, float] | None = None
) -> ChunkedPrefillMetrics:
    """Metrics of requests whose tokens came at these times, each arrived at 1 s unless given."""
    metrics = ChunkedPrefillMetrics()
    for request_id in tokens:
        metrics.record_arrival(request_id, (arrivals or {}).get(request_id, 1.0))
    events = sorted((now, request_id) for request_id, times in tokens.items() for now in times)
    for now, request_id in events:
        metrics.record_token(request_id, now)
    return metrics


def test_task_5_chunks_and_their_tokens_are_counted() -> None:
    metrics = ChunkedPrefillMetrics()
    for tokens in (64, 64, 17):
        metrics.record_chunk(tokens, 0.5)
    check_equal([metrics.num_chunks, metrics.num_prefill_tokens], [3, 145], "chunks, and tokens in them")


@pytest.mark.parametrize(
    ("smoothing", "seconds", "averages"),
    [
        (0.25, (4.0, 8.0, 1.0), [None, 4.0, 5.0, 4.0]),
        (1.0, (4.0, 0.0, 2.5), [None, 4.0, 0.0, 2.5]),
        (0.5, (0.0, 4.0), [None, 0.0, 2.0]),
    ],
)
def test_task_5_moving_average_of_the_chunk_time(
    smoothing: float, seconds: tuple[float, ...], averages: list[float | None]
) -> None:
    metrics = ChunkedPrefillMetrics(smoothing)
    found = [metrics.average_chunk_seconds]
    for each in seconds:
        metrics.record_chunk(64, each)
        found.append(metrics.average_chunk_seconds)
    what = f"average after each chunk of {seconds} s, smoothing {smoothing}"
    check_equal(found, averages, what, {"a time of 0 taken for none": [None, 0.0, 4.0]})


def test_task_5_a_first_token_is_not_a_decode() -> None:
    metrics = recorded({3: (2.0,), 8: (2.5,)})
    check_equal(metrics.num_decode_tokens, 0, "tokens decoded when each request has its first")
    metrics.record_token(3, 3.0)
    metrics.record_token(3, 3.5)
    metrics.record_token(8, 3.5)
    check_equal(metrics.num_decode_tokens, 3, "tokens decoded")


def test_task_5_prefill_to_decode_ratio() -> None:
    metrics = recorded({3: (2.0,)})
    metrics.record_chunk(70, 0.5)
    metrics.record_chunk(20, 0.5)
    ratios = [metrics.prefill_to_decode_ratio]
    for now in (3.0, 4.0, 5.0, 6.0):
        metrics.record_token(3, now)
        ratios.append(metrics.prefill_to_decode_ratio)
    check_equal(ratios, [None, 90.0, 45.0, 30.0, 22.5], "prompt tokens for each token decoded")


def test_task_5_time_to_first_token_includes_the_waiting() -> None:
    metrics = recorded({3: (2.5, 9.0), 8: (4.0,), 5: ()}, arrivals={3: 1.0, 8: 1.5, 5: 2.0})
    metrics.requests[3].record_scheduled(2.0)
    times = [metrics.ttft(request_id) for request_id in (3, 8, 5, 99)]
    check_equal(times, [1.5, 2.5, None, None], "time to first token of each request")


def test_task_5_a_time_of_zero_is_a_time() -> None:
    metrics = recorded({3: (0.0, 0.0)}, arrivals={3: 0.0})
    request = metrics.requests[3]
    request.record_scheduled(0.0)
    found = (
        metrics.ttft(3),
        metrics.gaps(3),
        metrics.gap_percentile(50, 3),
        request.queue_time,
        request.tpot,
    )
    what = "ttft, gaps, median gap, queue_time and tpot of a request whose times are all 0"
    check_equal(found, (0.0, [0.0], 0.0, 0.0, 0.0), what)


def test_task_5_an_id_that_arrives_again_begins_anew() -> None:
    metrics = recorded({3: (2.0, 5.0)})
    metrics.record_arrival(3, 6.0)
    check_equal((metrics.ttft(3), metrics.gaps(3)), (None, []), "ttft and gaps, once it arrived again")
    metrics.record_token(3, 6.5)
    check_equal(metrics.ttft(3), 0.5, "ttft of the second request of this id, which arrived at 6 s")


def test_task_5_gaps_are_within_a_request() -> None:
    metrics = recorded({3: (2.0, 2.5, 4.5), 8: (2.25, 5.25), 5: (7.0,), 6: ()})
    gaps = {request_id: metrics.gaps(request_id) for request_id in (3, 8, 5, 6, 99)}
    check_equal(gaps, {3: [0.5, 2.0], 8: [3.0], 5: [], 6: [], 99: []}, "gaps between tokens of each request")
    check_equal(sorted(metrics.gaps()), [0.5, 2.0, 3.0], "gaps of all requests")


def test_task_5_request_number_zero_is_a_request() -> None:
    metrics = recorded({0: (2.0, 2.5), 8: (2.0, 5.0)})
    check_equal(metrics.gaps(0), [0.5], "gaps of request 0")
    check_equal(metrics.gap_percentile(100, 0), 0.5, "longest gap of request 0")


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 2.0), (50, 2.5), (62.5, 2.75), (90, 7.2), (95, 8.6), (100, 10.0)]
)
def test_task_5_percentiles_of_values_and_of_gaps(percent: float, expected: float) -> None:
    metrics = recorded({3: (2.0, 4.0, 14.0, 15.0), 8: (2.0, 5.0, 7.5)})
    check_equal(sorted(metrics.gaps()), [1.0, 2.0, 2.5, 3.0, 10.0], "gaps, sorted")
    in_no_order = [2.5, 10, 1, 3, 2]
    of_values = [percentile(values, percent) for values in (in_no_order, iter(in_no_order))]
    for found in (*of_values, metrics.gap_percentile(percent)):
        what = f"percentile {percent} of 1, 2, 2.5, 3 and 10"
        check_close(mx.array(found), np.array(expected), what)


def test_task_5_percentile_of_one_request() -> None:
    metrics = recorded({3: (2.0, 3.0, 7.0), 8: (2.0, 12.0)})
    check_equal(metrics.gap_percentile(50, 3), 2.5, "median gap of request 3, between 1 and 4")
    check_equal(metrics.gap_percentile(50), 4.0, "median gap of all")


def test_task_5_without_gaps_there_is_no_percentile() -> None:
    metrics = recorded({3: (2.0,), 8: (2.0, 12.0)})
    found = [metrics.gap_percentile(50, request_id) for request_id in (3, 99)]
    found += [ChunkedPrefillMetrics().gap_percentile(99), percentile(iter(()), 99)]
    check_equal(found, [None] * 4, "percentiles without a gap, and of no values")


def test_task_5_times_of_one_request() -> None:
    request = RequestTimes(1.5, tokens=[2.5, 3.0, 5.0])
    check_equal((request.ttft, request.gaps), (1.0, [0.5, 2.0]), "ttft and gaps of one request")
    request = RequestTimes(1.5)
    check_equal((request.ttft, request.gaps), (None, []), "ttft and gaps before the first token")


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan")])
@pytest.mark.parametrize("gaps", [[], [1.0]], ids=str)
def test_task_5_a_percent_is_from_0_to_100(percent: float, gaps: list[float]) -> None:
    with check_value_error():
        percentile(gaps, percent)
    metrics = recorded({3: (2.0, *(2.0 + gap for gap in gaps))})
    with check_value_error():
        metrics.gap_percentile(percent)


def test_task_5_a_token_before_its_request_is_an_error() -> None:
    metrics = recorded({3: (2.0,)})
    with check_value_error(request_id=8):
        metrics.record_token(8, 2.0)
    check_equal(
        [metrics.num_decode_tokens, metrics.ttft(8)], [0, None], "tokens decoded, and time to first token"
    )


def test_task_5_two_metrics_share_nothing() -> None:
    first = recorded({3: (2.0, 3.0)})
    second = recorded({3: (5.0, 9.0)})
    check_equal([first.gaps(), second.gaps()], [[1.0], [4.0]], "gaps of each")


# Task 6: priorities


def queue_of(*requests: tuple[int, str], max_passed_over: int = 4) -> PriorityScheduler:
    scheduler = PriorityScheduler(max_passed_over)
    for request_id, priority in requests:
        scheduler.add(request_id, priority)
    return scheduler


def drain(scheduler: PriorityScheduler, most: int = 100) -> list[int]:
    order = []
    for _ in range(most):
        request_id = scheduler.next()
        if request_id is None:
            break
        order.append(request_id)
    return order


def test_task_6_a_request_is_interactive_unless_it_says_so() -> None:
    scheduler = queue_of((7, "batch"))
    scheduler.add(3)
    check_equal(drain(scheduler), [3, 7], "order taken, batch 7 and then 3 with no class queued")


@pytest.mark.parametrize(
    ("max_passed_over", "expected"),
    [
        (0, [100, 101, 102, 0, 1, 2, 3, 4, 5, 6]),
        (1, [0, 100, 1, 101, 2, 102, 3, 4, 5, 6]),
        (2, [0, 1, 100, 2, 3, 101, 4, 5, 102, 6]),
        (3, [0, 1, 2, 100, 3, 4, 5, 101, 6, 102]),
        (9, [0, 1, 2, 3, 4, 5, 6, 100, 101, 102]),
    ],
)
def test_task_6_batch_is_passed_over_a_few_times_only(max_passed_over: int, expected: list[int]) -> None:
    requests = [*((i, "interactive") for i in range(7)), *((100 + i, "batch") for i in range(3))]
    actual = drain(queue_of(*requests, max_passed_over=max_passed_over))
    what = f"order taken, max_passed_over {max_passed_over}, interactive 0 to 6, batch 100 to 102"
    mistakes = {"every interactive request before any batch one": [*range(7), 100, 101, 102]}
    check_equal(actual, expected, what, mistakes)


NEXT = None
# max_passed_over, then ids that come (of batch from 100 on) and turns between them, then the order taken
TURNS: dict[str, tuple[int, list[int | None], list[int | None]]] = {
    "interactive before batch, each in its order": (4, [107, 3, 108, 1], [3, 1, 107, 108]),
    "nobody waits": (4, [0, NEXT, NEXT, 104, NEXT], [0, None, 104]),
    "turns while no batch request waits do not count": (
        2,
        [0, 1, 2, 3, 4, 5, NEXT, NEXT, NEXT, 100],
        [0, 1, 2, 3, 4, 100, 5],
    ),
    "the count starts again after each batch request": (
        2,
        [100, 0, NEXT, NEXT, 1, 2, 3, 101],
        [0, 100, 1, 2, 101, 3],
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_task_6_whose_turn_it_is(name: str) -> None:
    max_passed_over, events, expected = TURNS[name]
    scheduler, order = PriorityScheduler(max_passed_over), []
    for event in events:
        if event is NEXT:
            order.append(scheduler.next())
        else:
            scheduler.add(event, "batch" if event >= 100 else "interactive")
    what = f"order taken, max_passed_over {max_passed_over}, ids and turns {events}, batch from 100 on"
    check_equal([*order, *drain(scheduler)], expected, what)


def test_task_6_four_times_unless_it_is_told() -> None:
    scheduler = PriorityScheduler()
    for request_id in (0, 1, 2, 3, 4, 5, 100):
        scheduler.add(request_id, "batch" if request_id == 100 else "interactive")
    what = "order taken, max_passed_over not given, interactive 0 to 5, batch 100"
    check_equal(drain(scheduler), [0, 1, 2, 3, 100, 4, 5], what)


@settings(max_examples=200)
@given(
    events=st.lists(st.sampled_from(["interactive", "batch", "next", "next"]), max_size=60),
    max_passed_over=st.integers(0, 4),
)
def test_task_6_every_turn_is_as_the_rules_say(events: list[str], max_passed_over: int) -> None:
    scheduler = PriorityScheduler(max_passed_over)
    interactive: list[int] = []
    batch: list[int] = []
    num_passed_over = 0
    for request_id, event in enumerate(events):
        if event != "next":
            scheduler.add(request_id, event)
            (interactive if event == "interactive" else batch).append(request_id)
            continue
        if batch and (not interactive or num_passed_over == max_passed_over):
            expected, num_passed_over = batch.pop(0), 0
        else:
            expected = interactive.pop(0) if interactive else None
            num_passed_over += expected is not None and bool(batch)
        check_equal(scheduler.next(), expected, f"request taken at event {request_id} of {events}")
        check_equal(len(scheduler), len(interactive) + len(batch), "number that wait")


def test_task_6_unknown_class_is_an_error() -> None:
    scheduler = queue_of((7, "batch"))
    with check_value_error(priority="urgent"):
        scheduler.add(3, "urgent")
    check_equal(drain(scheduler), [7], "order taken after the error")


def test_task_6_negative_bound_is_an_error() -> None:
    with check_value_error(max_passed_over=-1):
        PriorityScheduler(-1)


# Task 7: schedules on paper

LIMIT = 5  # seconds for a schedule to end


def prompts_of(*lengths: int) -> list[dict[str, int]]:
    """Requests numbered from 10."""
    return [{"id": 10 + i, "prompt_length": n} for i, n in enumerate(lengths)]


def row(step: int, decode_tokens: int, *chunks: tuple[int, int]) -> dict[str, Any]:
    processed = [{"id": request_id, "tokens_processed": tokens} for request_id, tokens in chunks]
    return {"step": step, "prefill_chunks": processed, "decode_tokens": decode_tokens}


def call_of(function: Any, prompts: list[dict[str, int]], *arguments: Any) -> str:
    """A call in short, such as: chunked_prefill_schedule({10: 7, 11: 3}, 1, 8, 4), the prompts by id."""
    lengths = {prompt["id"]: prompt["prompt_length"] for prompt in prompts}
    return f"{function.__name__}({', '.join(map(str, (lengths, *arguments)))})"


def check_steps(actual: list[Any], expected: list[Any], call: str) -> None:
    """Compare schedules step by step: the decodes of a step first, then whose tokens it prefills."""
    __tracebackhide__ = True
    for step, (got, wanted) in enumerate(zip(actual, expected, strict=False)):
        if got == wanted:
            continue
        where = f"in step {step} of {call}"
        check_equal(sorted(got), sorted(wanted), f"keys of what is {where}")
        check_equal(got["step"], step, f"number of the step {where}")
        check_equal(got["decode_tokens"], wanted["decode_tokens"], f"decode_tokens {where}")
        chunks, expected_chunks = (
            [tuple(chunk.values()) for chunk in each["prefill_chunks"]] for each in (got, wanted)
        )
        check_equal(chunks, expected_chunks, f"(id, tokens_processed) of the chunks {where}")
        check_equal(got, wanted, f"all that is {where}")
    check_equal(len(actual), len(expected), f"number of steps of {call}")


def schedule(prompts: list[dict[str, int]], num_decodes: int, budget: int, chunk_size: int) -> list[Any]:
    with ends_within(LIMIT):
        return chunked_prefill_schedule(prompts, num_decodes, budget, chunk_size)


def repaired(prompts: list[dict[str, int]], decodes: list[int], budget: int, *sizes: int) -> list[Any]:
    with ends_within(LIMIT):
        return repaired_prefill_schedule(prompts, decodes, budget, *sizes)


HAND_WORKED = {
    "a chunk smaller than the budget, one a request and step": (
        (prompts_of(10), 0, 100, 4),
        [row(0, 0, (10, 4)), row(1, 0, (10, 4)), row(2, 0, (10, 2)), row(3, 1)],
    ),
    "decodes first": (
        (prompts_of(6), 3, 7, 4),
        [row(0, 3, (10, 4)), row(1, 3, (10, 2)), row(2, 4)],
    ),
    "three tokens that would fit wait for a whole chunk": (
        (prompts_of(8, 3), 0, 7, 4),
        [row(0, 0, (10, 4)), row(1, 0, (10, 4)), row(2, 1, (11, 3)), row(3, 2)],
    ),
    "a tail of three frees the rest of its chunk": (
        (prompts_of(7, 9), 0, 8, 4),
        [row(0, 0, (10, 4), (11, 4)), row(1, 0, (10, 3), (11, 4)), row(2, 1, (11, 1)), row(3, 2)],
    ),
    "the first that does not fit ends the pass": (
        (prompts_of(9, 1, 1), 0, 5, 4),
        [row(0, 0, (10, 4)), row(1, 0, (10, 4)), row(2, 0, (10, 1), (11, 1)), row(3, 2), row(4, 2)],
    ),
    "a completed prompt decodes from the next step on": (
        (prompts_of(2, 6), 0, 8, 4),
        [row(0, 0, (10, 2), (11, 4)), row(1, 1, (11, 2)), row(2, 2)],
    ),
    "a budget that decodes use up": ((prompts_of(6), 9, 5, 4), [row(0, 5), row(1, 5)]),
    "one decode too many for a whole chunk": ((prompts_of(67), 1, 64, 64), [row(0, 1), row(1, 1)]),
}


@pytest.mark.parametrize("name", HAND_WORKED)
def test_task_7_schedule_worked_by_hand(name: str) -> None:
    arguments, expected = HAND_WORKED[name]
    call = call_of(chunked_prefill_schedule, *arguments)
    rest = [{**expected[-1], "step": step} for step in range(len(expected), 1001)]
    check_steps(schedule(*arguments), [*expected, *rest], call)


@pytest.mark.parametrize(
    ("length", "last"), [(1000, row(1000, 1)), (1001, row(1000, 0, (10, 1))), (1002, row(1000, 0, (10, 1)))]
)
def test_task_7_prompt_about_as_long_as_the_schedule(length: int, last: dict[str, Any]) -> None:
    rows = schedule(prompts_of(length), 0, 1, 1)
    call = call_of(chunked_prefill_schedule, prompts_of(length), 0, 1, 1)
    check_equal(len(rows), 1001, f"number of steps of {call}, 0 to 1000")
    check_equal(rows[-1], last, f"last step of {call}")


def test_task_7_nothing_to_do() -> None:
    check_equal(schedule([], 0, 8, 4), [], "steps of chunked_prefill_schedule([], 0, 8, 4)")


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=6),
    num_decodes=st.integers(0, 6),
    budget=st.integers(1, 15),
    chunk_size=st.integers(1, 8),
)
def test_task_7_every_step_follows_the_rules(
    lengths: list[int], num_decodes: int, budget: int, chunk_size: int
) -> None:
    left = {10 + i: n for i, n in enumerate(lengths)}
    decoding = num_decodes
    rows = schedule(prompts_of(*lengths), num_decodes, budget, chunk_size)
    check_equal(len(rows), 1001 if lengths or num_decodes else 0, "number of steps")
    for step, actual in enumerate(rows):
        num_decodes = min(decoding, budget)
        room, expected = budget - num_decodes, []
        for request_id in left:
            if room < chunk_size:
                break
            tokens = min(chunk_size, left[request_id])
            room -= tokens
            left[request_id] -= tokens
            expected.append((request_id, tokens))
        check_equal(actual, row(step, num_decodes, *expected), f"all that is in step {step}")
        decoding += sum(n == 0 for n in left.values())
        left = {request_id: n for request_id, n in left.items() if n}


BAD_SCHEDULES = {
    "empty prompt": (prompts_of(5, 0), 8, 4),
    "no budget": (prompts_of(5), 0, 4),
    "no chunk": (prompts_of(5), 8, 0),
    "same id": ([*prompts_of(5), *prompts_of(6)], 8, 4),
}


@pytest.mark.parametrize("name", BAD_SCHEDULES)
def test_task_7_a_schedule_that_makes_no_sense_is_an_error(name: str) -> None:
    prompts, *sizes = BAD_SCHEDULES[name]
    with check_value_error(), ends_within(LIMIT):
        chunked_prefill_schedule(prompts, 1, *sizes)
    with check_value_error(), ends_within(LIMIT):
        repaired_prefill_schedule(prompts, [1], *sizes)


def test_task_7_negative_decodes_are_an_error() -> None:
    with check_value_error(num_active_decodes=-1), ends_within(LIMIT):
        chunked_prefill_schedule(prompts_of(5), -1, 8, 4)


@pytest.mark.parametrize(("decodes", "output_length"), [([2, 0], 1), ([-1], 1), ([2], 0)])
def test_task_7_nothing_to_decode_is_an_error(decodes: list[int], output_length: int) -> None:
    with check_value_error(length=min([output_length, *decodes])), ends_within(LIMIT):
        repaired_prefill_schedule(prompts_of(5), decodes, 8, 4, output_length)


def test_task_7_the_requests_are_left_as_they_are() -> None:
    prompts = prompts_of(7, 3)
    decodes = [2, 1]
    schedule(prompts, 1, 8, 4)
    repaired(prompts, decodes, 8, 4, 2)
    check_equal([prompts, decodes], [prompts_of(7, 3), [2, 1]], "the arguments afterwards")


REPAIRED = {
    "three tokens that fit are taken": (
        (prompts_of(8, 3), [], 7, 4),
        [row(0, 0, (10, 4), (11, 3)), row(1, 1, (10, 4)), row(2, 1)],
    ),
    "one decode does not block a prompt": (
        (prompts_of(67), [2], 64, 64, 2),
        [row(0, 1, (10, 63)), row(1, 1, (10, 4)), row(2, 1), row(3, 1)],
    ),
    "decodes take turns": (([], [2, 2, 2], 2, 4), [row(0, 2), row(1, 2), row(2, 2)]),
    "decodes of different lengths": (([], [1, 3, 2], 8, 4), [row(0, 3), row(1, 2), row(2, 1)]),
    "decodes that use up the budget come first": (
        (prompts_of(3), [1, 1, 1], 2, 4),
        [row(0, 2), row(1, 1, (10, 1)), row(2, 0, (10, 2)), row(3, 1)],
    ),
    "nothing to do": (([], [], 8, 4), []),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_task_7_repaired_schedule_worked_by_hand(name: str) -> None:
    arguments, expected = REPAIRED[name]
    check_steps(repaired(*arguments), expected, call_of(repaired_prefill_schedule, *arguments))


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=6),
    decodes=st.lists(st.integers(1, 9), max_size=6),
    budget=st.integers(1, 15),
    chunk_size=st.integers(1, 8),
    output_length=st.integers(1, 5),
)
def test_task_7_repaired_schedule_computes_everything_once_and_wastes_nothing(
    lengths: list[int], decodes: list[int], budget: int, chunk_size: int, output_length: int
) -> None:
    left = {10 + i: n for i, n in enumerate(lengths)}
    rows = repaired(prompts_of(*lengths), decodes, budget, chunk_size, output_length)
    decoding = deque(decodes)
    for step, actual in enumerate(rows):
        served = [decoding.popleft() for _ in range(min(len(decoding), budget))]
        decoding.extend(n - 1 for n in served if n > 1)
        room, expected = budget - len(served), []
        for request_id in left:
            tokens = min(left[request_id], chunk_size, room)
            room -= tokens
            left[request_id] -= tokens
            if tokens:
                expected.append((request_id, tokens))
        check_equal(actual, row(step, len(served), *expected), f"all that is in step {step}")
        decoding.extend(output_length for n in left.values() if n == 0)
        left = {request_id: n for request_id, n in left.items() if n}
    check_equal([left, list(decoding)], [{}, []], "prompts and decodes not computed at the end")
    total = sum(lengths) + sum(decodes) + output_length * len(lengths)
    assert len(rows) <= total, f"{len(rows)} steps for {total} tokens: a step computed nothing"
