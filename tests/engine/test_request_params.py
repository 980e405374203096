"""What users of a server set beyond day 1.7: ranges, what it does to logits, and log-probabilities."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.fakes import VOCAB_SIZE, FakeModel, FakeTokenizer, prompt_of
from tests.support.oracles import exact, log_softmax
from tiny_llm import (
    Engine,
    Request,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    Sequence,
    UnlimitedBlocks,
)
from tiny_llm.engine.adjusted_logits import adjust_logits
from tiny_llm.engine.sampling_batch import Sampled, read_samples, sample_one_by_one

PROMPT, ANSWER = [3, 5, 5, 9], [5, 11, 11, 2]
REFUSED: list[tuple[str, Any]] = [
    ("repetition_penalty", 0),
    ("repetition_penalty", math.inf),
    ("repetition_penalty", math.nan),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", math.nan),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {4: 100.5}),
    ("logit_bias", {True: 1.0}),
    ("stop_token_ids", (-1,)),
    ("forced_ids", (-1,)),
    ("stop_token_ids", ("7",)),
    ("min_tokens", -1),
    ("min_tokens", 1.0),
    ("logprobs", -1),
    ("logprobs", False),
    ("cache_salt", ""),
    ("cache_salt", 5),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_is_out_of_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_ends_of_ranges_are_in_them() -> None:
    SamplingParams(
        presence_penalty=-2, frequency_penalty=2, logit_bias={0: -100, 7: 100}, min_tokens=0, logprobs=0
    )


def test_what_is_given_is_copied_and_can_be_compared_hashed_and_replaced() -> None:
    bias, stops = {7: 1.5, 2: -1.0}, [4, 1]
    params = SamplingParams(logit_bias=bias, stop_token_ids=stops, seed=3)
    bias[2], stops[0] = 9.0, 0
    assert (params.logit_bias, params.stop_token_ids) == (((2, -1.0), (7, 1.5)), (4, 1))
    assert replace(params, seed=3) == params
    assert hash(replace(params, seed=3)) == hash(params)
    assert params != SamplingParams(stop_token_ids=(4, 1), seed=3)


def make_engine(**options: Any) -> Engine:
    tokenizer = FakeTokenizer(eos_token_ids=[0])
    return Engine(FakeModel(**options), tokenizer, SchedulerConfig(16, 3), 64, UnlimitedBlocks())


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        (SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"token {VOCAB_SIZE}, .* ends with {VOCAB_SIZE - 1}"),
        (SamplingParams(stop_token_ids=(3, VOCAB_SIZE)), f"stop_token_ids has token {VOCAB_SIZE}"),
        (SamplingParams(forced_ids=(3, VOCAB_SIZE)), f"forced_ids has token {VOCAB_SIZE}"),
        (SamplingParams(logprobs=VOCAB_SIZE + 1), f"logprobs is {VOCAB_SIZE + 1}"),
        (SamplingParams(min_tokens=4, max_tokens=3), "min_tokens is 4, more than max_tokens, 3"),
    ],
)
def test_the_engine_refuses_what_its_model_has_not(params: SamplingParams, shown: str) -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match=shown):
        engine.add_request(prompt_of(3), params)
    assert not engine.has_unfinished_requests
    assert (
        engine.add_request(
            prompt_of(3), SamplingParams(logprobs=VOCAB_SIZE, logit_bias={VOCAB_SIZE - 1: 1.0})
        )
        == 0
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.2),
        ("presence_penalty", 1),
        ("frequency_penalty", 1),
        ("logit_bias", {2: 1}),
        ("min_tokens", 1),
        ("forced_ids", (1,)),
        ("logprobs", 0),
    ],
)
def test_week_2_refuses_what_it_does_not_do(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} needs the engine of week 3"):
        Request(FakeModel(), FakeTokenizer(), prompt_of(3), params=SamplingParams(**{name: value}))


def test_week_2_ends_at_stop_tokens() -> None:
    assert Request(
        FakeModel(), FakeTokenizer(), prompt_of(3), params=SamplingParams(stop_token_ids=[9])
    ).end_ids >= {9}


def entry_of(id: int = 0, answer: list[int] = ANSWER) -> ScheduledTokens:
    sequence = Sequence(id, PROMPT)
    sequence.token_ids += answer
    return whole(sequence)


def whole(sequence: Sequence) -> ScheduledTokens:
    return ScheduledTokens(sequence, 0, sequence.num_tokens, True)


ADJUSTED = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.8, presence_penalty=0.5),
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(),
    SamplingParams(presence_penalty=-1.5, frequency_penalty=-0.2, logit_bias={5: 3.0, 12: -100.0}),
    SamplingParams(min_tokens=5, stop_token_ids=(1, 9)),
    SamplingParams(min_tokens=4, stop_token_ids=(1, 9)),
    SamplingParams(min_tokens=9, stop_token_ids=(1, 61), logit_bias={1: 100.0, 9: 2.0}),
    SamplingParams(min_tokens=9, stop_token_ids=(5, 999), repetition_penalty=1.5, logit_bias={3: -2.5}),
]


def adjusted_alone(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """One row, token by token: what may not come yet, biases, then penalties."""
    row, counts = logits.copy(), Counter(ANSWER)
    for token in range(len(row)):
        row[token] += dict(params.biases).get(token, 0.0)
        if len(ANSWER) < params.min_tokens and token in params.stop_token_ids:
            row[token] = -np.inf
        if token in PROMPT + ANSWER:
            row[token] *= params.repetition_penalty if row[token] < 0 else 1 / params.repetition_penalty
        row[token] -= params.presence_penalty * (token in counts) + params.frequency_penalty * counts[token]
    return row


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_logits_are_adjusted_row_by_row(dtype: mx.Dtype) -> None:
    logits = (3 * normal(len(ADJUSTED), 61, seed=4)).astype(dtype)
    entries = [entry_of(id) for id in range(len(ADJUSTED))]
    found = adjust_logits(logits, entries, dict(enumerate(ADJUSTED)))
    expected = np.stack(
        [adjusted_alone(row, params) for row, params in zip(exact(logits), ADJUSTED, strict=True)]
    )
    check_close(found, expected, "adjusted logits, a row for each kind of parameters")


class CountedReads(list[int]):
    """Token ids that count how many of them are looked at."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_read += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.num_read += len(self)
        return super().__iter__()


def test_counts_that_are_kept_equal_those_made_anew_and_a_step_looks_at_new_tokens_alone() -> None:
    random = Random(7)
    penalized = [each for each in ADJUSTED if each.has_penalties]
    params = dict(enumerate(penalized))
    kept = [entry_of(id, []).sequence for id in params]
    for sequence in kept:
        sequence.token_ids = CountedReads(sequence.token_ids)
    num_unread = [sequence.num_tokens for sequence in kept]
    for step in range(200):
        logits = normal(len(kept), 211, seed=step)
        of_step = random.sample(kept, random.randint(1, len(kept)))
        reads_before = [sequence.token_ids.num_read for sequence in kept]
        found = adjust_logits(logits[: len(of_step)], [whole(each) for each in of_step], params)
        for sequence in of_step:
            id, tokens = sequence.id, sequence.token_ids
            assert tokens.num_read - reads_before[id] == num_unread[id], "tokens that a step looks at"
            num_unread[id] = 0
        copies = [entry_of(each.id, list(each.token_ids)[len(PROMPT) :]) for each in of_step]
        anew = adjust_logits(logits[: len(of_step)], copies, params)
        check_equal(
            found.tolist(), anew.tolist(), f"logits of step {step}, adjusted by the counts that are kept"
        )
        for sequence in of_step:
            sequence.token_ids.append(random.randrange(211))
            num_unread[sequence.id] += 1


def test_nothing_to_adjust_is_no_operation() -> None:
    logits = normal(2, 61, seed=5)
    assert (
        adjust_logits(logits, [entry_of(0), entry_of(1)], dict.fromkeys(range(2), SamplingParams(0.5)))
        is logits
    )


@pytest.mark.parametrize("asked", [(None, 3, 0), (61, None, 1), (None, None, None)], ids=str)
def test_logprobs_are_the_models_own_before_all_changes(asked: tuple[int | None, ...]) -> None:
    logits = normal(3, 61, seed=6)
    entries, rows = [entry_of(id) for id in range(3)], log_softmax(exact(logits))
    params = {
        id: SamplingParams(temperature=9.0, seed=id, logit_bias={7 + id: 100.0}, logprobs=each)
        for id, each in enumerate(asked)
    }
    samples = read_samples([Sampled.of(logits, entries, params, sample_one_by_one)])
    assert samples.logprobs.keys() == {id for id, each in enumerate(asked) if each is not None}
    for id, found in samples.logprobs.items():
        token, likeliest = samples.token_ids[id], np.argsort(-rows[id])[: asked[id]]
        check_equal(token, 7 + id, "token whose bias is 100")
        check_close(mx.array([found.logprob]), rows[id][[token]], "log-probability of the token")
        check_equal([each for each, _ in found.top], likeliest.tolist(), "likeliest tokens")
        check_close(mx.array([each for _, each in found.top]), rows[id][likeliest], "their log-probabilities")


def test_of_equally_likely_tokens_the_smallest_ids_come_first() -> None:
    logits = mx.round(normal(1, 61, seed=8))
    params = {0: SamplingParams(logprobs=61)}
    found = read_samples([Sampled.of(logits, [entry_of()], params, sample_one_by_one)]).logprobs[0]
    row = logits[0].tolist()
    assert [token for token, _ in found.top] == sorted(range(61), key=lambda token: (-row[token], token))


def test_the_engine_hands_out_logprobs_of_the_tokens_of_each_answer() -> None:
    engine = make_engine(eos_at_length=9)
    asking = engine.add_request(prompt_of(5), SamplingParams(logprobs=2))
    engine.add_request(prompt_of(4, 1), SamplingParams(max_tokens=3))
    results, of_steps = {}, []
    while engine.has_unfinished_requests:
        step = engine.step()
        assert step.logprobs.keys() <= {asking}
        of_steps += step.logprobs.values()
        results |= {result.prompt_idx: result for result in step.finished}
    assert results[asking].logprobs == tuple(of_steps[: len(results[asking].token_ids)])
    assert [each.top[0] for each in results[asking].logprobs] == [
        (token, each.logprob)
        for token, each in zip(results[asking].token_ids, results[asking].logprobs, strict=True)
    ]
    assert len(of_steps) == len(results[asking].token_ids) + 1, (
        "the end-of-text id has some too, in its step alone"
    )
    assert results[1].logprobs == ()


def test_min_tokens_holds_back_the_end_and_stop_tokens_bring_it() -> None:
    (free,) = make_engine(eos_at_length=8).generate([prompt_of(5)])
    (held,) = make_engine(eos_at_length=8).generate(
        [prompt_of(5)], SamplingParams(min_tokens=6, max_tokens=6)
    )
    assert (len(free.token_ids), free.finish_reason) == (3, "stop")
    assert (len(held.token_ids), held.finish_reason) == (6, "length")
    stop = SamplingParams(stop_token_ids=[free.token_ids[1]])
    (stopped,) = make_engine(eos_at_length=8).generate([prompt_of(5)], stop)
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:1], "stop")


def test_a_bias_does_not_bring_an_end_that_is_held_back() -> None:
    params = SamplingParams(min_tokens=3, max_tokens=9, logit_bias={0: 100.0})
    (result,) = make_engine().generate([prompt_of(5)], params)
    assert (len(result.token_ids), result.finish_reason) == (3, "stop")


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_an_answer_begins_with_its_forced_tokens_even_with_the_end(temperature: float) -> None:
    forced, prompt = (4, 0, 9), prompt_of(5)
    params = SamplingParams(
        temperature=temperature, top_k=2, forced_ids=forced, min_tokens=5, max_tokens=5, logprobs=0
    )
    (result,) = make_engine().generate([prompt], params)
    assert result.token_ids[:3] == forced
    assert len(result.logprobs) == len(result.token_ids) == 5
    (short,) = make_engine().generate([prompt], replace(params, min_tokens=0, max_tokens=2))
    assert (short.token_ids, short.finish_reason) == (forced[:2], "length")


@pytest.mark.parametrize("priority", [True, -1, 1.0, None])
def test_a_priority_is_a_number_from_zero(priority: Any) -> None:
    with pytest.raises(ValueError, match="priority"):
        make_engine().add_request(prompt_of(3), SamplingParams(max_tokens=1), priority)


def test_a_seed_of_zero_is_a_seed() -> None:
    engine = make_engine()
    engine.add_request(prompt_of(5), SamplingParams(temperature=1.0, seed=0))
    assert engine.requests[0].params.seed == 0


def test_requests_without_a_seed_differ_and_each_keeps_its_own() -> None:
    engine = make_engine()
    for _ in range(2):
        engine.add_request(prompt_of(5), SamplingParams(temperature=5.0, max_tokens=20))
    seeds = [request.params.seed for request in engine.requests.values()]
    assert None not in seeds
    assert seeds[0] != seeds[1]
    with check_value_error(num_others=2):
        engine.generate([prompt_of(3)])
