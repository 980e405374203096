"""Which sampler the engine uses, and the kernel in the place of the learner's, token by token."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from accelerated import accelerate, engine_contests
from accelerated.accelerate import best_sampler
from accelerated.sample_rows import sample_natively
from kernel_runtime import self_check
from tests.support.check import check_equal, normal
from tests.support.oracles import expected_kept
from tests.support.sampling import numbers_of
from tiny_llm import SamplingParams, ScheduledTokens, Sequence
from tiny_llm.engine.batch_sampler import sample_batch
from tiny_llm.engine.sampling_batch import SamplingBatch, random_numbers, sample_one_by_one
from tiny_llm.generation.generate import to_logprobs

CUTS = [(0, None, 0), (0.9, None, 0), (0, 1, 0), (0, 7, 0), (0, 5000, 0), (0, None, 0.2), (0.999, 40, 0.01)]
PARAMS = tuple(SamplingParams(temp, *cut) for temp in (0, 0.01, 0.7, 2) for cut in CUTS)


@pytest.fixture(autouse=True)
def _forgotten(on_cpu: None) -> Iterator[None]:
    accelerate._chosen.cache_clear()
    self_check._notice_once.cache_clear()
    yield
    accelerate._chosen.cache_clear()


def not_written(logits: mx.array, batch: SamplingBatch) -> mx.array:
    raise NotImplementedError("week 3 day 3 task 8: sample_batch is not written yet")


def failing(logits: mx.array, batch: SamplingBatch) -> mx.array:
    raise TypeError("no such axis")


def likeliest(logits: mx.array, batch: SamplingBatch) -> mx.array:
    return mx.argmax(logits, axis=-1)


@pytest.mark.parametrize(
    ("sampler", "notice"),
    [
        (not_written, ""),
        (failing, "TypeError: no such axis"),
        (likeliest, "differs from the sampler of day 1.7"),
    ],
    ids=["not written", "failing", "greedy"],
)
def test_rows_are_sampled_one_at_a_time_until_the_sampler_is_right(
    sampler: object, notice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (engine_contests, accelerate):
        monkeypatch.setattr(module, "sample_batch", sampler)
    assert best_sampler() is sample_one_by_one
    printed = capsys.readouterr().err
    assert notice in printed
    assert bool(notice) == bool(printed)


def test_the_kernel_stands_in_on_the_cpu_unless_kernels_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert best_sampler() is sample_natively
    monkeypatch.setenv("TINY_LLM_KERNELS", "off")
    assert best_sampler() is sample_batch


@pytest.mark.parametrize("V", [1, 2, 15, 16, 17, 61, 1023, 1025, 5003])
@pytest.mark.parametrize(("size", "step"), [(1.5, 0), (0.01, 0), (1.5, 0.5), (40, 0), (0, 0)])
def test_the_kernel_draws_what_array_operations_draw(V: int, size: float, step: float) -> None:
    logits = size * normal(len(PARAMS), V, seed=V)
    logits = step * mx.round(logits / step) if step else logits  # many are equal
    for seed in range(3):
        numbers = random_numbers(
            np.full(len(PARAMS), seed, np.uint64), np.arange(len(PARAMS), dtype=np.uint64)
        )
        batch = SamplingBatch(PARAMS, numbers)
        check_equal(sample_natively(logits, batch).tolist(), sample_batch(logits, batch).tolist(), "tokens")


def test_the_kernel_with_impossible_tokens_and_numbers_at_both_ends() -> None:
    logits = mx.where(mx.arange(2000) % 777 == 5, 0.0, -mx.inf) + mx.zeros((len(PARAMS), 1))
    for uniform in (0.0, 1 - 2**-23):
        batch = SamplingBatch(PARAMS, numbers_of(np.full(len(PARAMS), uniform)))
        found = sample_natively(logits, batch).tolist()
        check_equal(found, sample_batch(logits, batch).tolist(), f"tokens drawn by {uniform}")
        assert set(found) <= {5, 782, 1559}


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_the_kernel_takes_logits_of_any_type(dtype: mx.Dtype) -> None:
    logits = normal(len(PARAMS), 500, seed=3).astype(dtype)
    batch = SamplingBatch(PARAMS, np.arange(len(PARAMS), dtype=np.uint64) << np.uint64(59))
    check_equal(sample_natively(logits, batch).tolist(), sample_batch(logits, batch).tolist(), "tokens")


def test_the_streams_of_all_seeds_are_even_and_do_not_meet() -> None:
    seeds, draws = (each.ravel().astype(np.uint64) for each in np.mgrid[0:200, 0:200])
    numbers = random_numbers(seeds, draws)
    assert len(set(numbers.tolist())) == len(numbers)
    counts = np.bincount((numbers >> np.uint64(58)).astype(int), minlength=64)
    assert ((counts - 625) ** 2 / 625).sum() < 110  # of 64 classes: reached by chance once in 5,000
    neighbours = np.corrcoef(
        numbers.reshape(200, 200)[:, :-1].ravel(), numbers.reshape(200, 200)[:, 1:].ravel()
    )
    assert abs(neighbours[0, 1]) < 0.02
    check_equal(random_numbers(seeds[7:8], draws[7:8])[0], numbers[7], "a number by itself, and among all")


def test_a_request_s_nth_token_has_the_nth_number_of_its_seed() -> None:
    sequences = [Sequence(id, [3] * (2 + id)) for id in range(3)]
    for sequence, num_generated in zip(sequences, (0, 5, 5), strict=True):
        sequence.token_ids += [7] * num_generated
    entries = [ScheduledTokens(each, 0, each.num_tokens, True) for each in sequences]
    batch = SamplingBatch.of(entries, {id: SamplingParams(1.0, seed=9) for id in range(3)})
    expected = random_numbers(np.full(3, 9, np.uint64), np.array([0, 5, 5], np.uint64))
    check_equal(batch.numbers.tolist(), expected.tolist(), "numbers of 0, 5 and 5 generated tokens")


def test_rows_one_at_a_time_keep_to_their_cuts() -> None:
    logits = 1.5 * normal(1, 61, seed=9)
    row = np.array(to_logprobs(logits[:, None]))[0].astype(np.float64)
    params = SamplingParams(1.0, top_p=0.5, top_k=7, min_p=0.05)
    kept = set(np.flatnonzero(expected_kept(row, 0.5, 7, 0.05)).tolist())
    numbers = random_numbers(np.full(200, 4, np.uint64), np.arange(200, dtype=np.uint64))
    found = sample_one_by_one(mx.tile(logits, (200, 1)), SamplingBatch((params,) * 200, numbers)).tolist()
    check_equal(set(found), kept, "tokens drawn by 200 numbers")
