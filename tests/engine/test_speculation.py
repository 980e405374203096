"""Drafts change how many steps an answer takes, and neither its tokens nor their distribution."""

from collections.abc import Sequence as Items
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from accelerated.accelerate import engine_operations
from tests.support.engines import drafting_engine
from tests.support.schedules import (
    IdTokenizer,
    random_qwen3,
)
from tiny_llm import (
    BlockManager,
    DraftModel,
    Engine,
    LookupDrafter,
    PrefixCachingBlockManager,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    UnlimitedBlocks,
    with_drafts,
)
from tiny_llm.engine.sampling_batch import SamplingBatch
from tiny_llm.speculation import draft_runner, verifying_runner
from tiny_llm.speculation.drafter import Drafts
from tiny_llm.speculation.grammar_drafter import GrammarDrafter
from tiny_llm.speculation.rejection import probabilities

Floats = npt.NDArray[np.float64]


class Endless(IdTokenizer):
    """Ends no answer."""

    eos_token_ids: set[int] = set()


# Tokens


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("wrap", [lambda drafter: drafter, GrammarDrafter], ids=["alone", "with a grammar"])
def test_a_draft_model_that_does_not_fit_is_refused_when_the_engine_is_made(wrap: Any) -> None:
    """It would be read beyond its logits, or fail in mid-step and close the engine."""
    model, other, pool = random_qwen3(), copy(random_qwen3(5)), BlockManager(20, 4)
    size, limits = model.config.vocab_size, {"max_seq_len": 64, "blocks": pool}
    for own in (size - 1, size + 1):
        other.config = replace(model.config, vocab_size=own)
        with pytest.raises(ValueError, match=f"{own} tokens and the model one of {size}"):
            drafting_engine(model, Endless(), **limits, drafter=wrap(DraftModel(other, pool)))
    with pytest.raises(ValueError, match="other blocks"):
        drafting_engine(model, Endless(), **limits, drafter=wrap(DraftModel(model, BlockManager(20, 4))))


@pytest.mark.usefixtures("on_cpu")
def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    prompts, params = [[5, 7, 9], [11, 3, 8, 21, 6, 2, 17]], SamplingParams(max_tokens=16)
    config = SchedulerConfig(16, 2)
    with Engine(random_qwen3(), Endless(), config, 30, PrefixCachingBlockManager(20, 4)) as engine:
        alone = engine.generate(prompts, params)
    pool = PrefixCachingBlockManager(20, 4)
    drafter = DraftModel(random_qwen3(), pool, 3)
    with Engine(random_qwen3(), Endless(), config, 30, pool, execution=with_drafts(drafter)) as engine:
        for prompt in prompts:
            engine.add_request(prompt, params)
        steps = []
        while engine.has_unfinished_requests:
            steps.append(engine.step())
    assert [len(step.accepted.get(0, ())) for step in steps] == [3, 3, 3, 3]
    assert sorted(result.token_ids for step in steps for result in step.finished) == sorted(
        result.token_ids for result in alone
    )


def test_drafts_need_a_pool() -> None:
    with pytest.raises(ValueError, match="UnlimitedBlocks"):
        drafting_engine(random_qwen3(), Endless(), None, 30, UnlimitedBlocks())


@pytest.mark.usefixtures("on_cpu")
def test_a_sampled_answer_does_not_depend_on_the_requests_beside_it() -> None:
    answers = []
    for num_others in range(2):
        pool = BlockManager(40, 4)
        drafter = DraftModel(random_qwen3(seed=5), pool, 3)
        prompts = [[11, 3, 8]] * num_others + [[5, 7, 9]]
        greedy, sampled = SamplingParams(seed=1, max_tokens=16), SamplingParams(1.0, seed=3, max_tokens=16)
        with Engine(random_qwen3(), Endless(), None, 30, pool, execution=with_drafts(drafter)) as engine:
            results = engine.generate(prompts, [*[greedy] * num_others, sampled])
        answers.append(results[-1].token_ids)
    assert answers[0] == answers[1]


def test_an_aborted_request_has_no_drafts_in_its_last_step() -> None:
    class Aborting(DraftModel):
        def propose(self, *args: Any) -> Drafts:
            engine.abort(0)
            return super().propose(*args)

    pool = BlockManager(20, 4)
    drafter = Aborting(random_qwen3(), pool, 3)  # always right
    with Engine(random_qwen3(), Endless(), None, 30, pool, execution=with_drafts(drafter)) as engine:
        for prompt in ([5, 7, 9], [11, 3, 8]):
            engine.add_request(prompt, SamplingParams(max_tokens=16))
        step = engine.step()
        assert (step.sampled.keys(), step.accepted.keys()) == ({1}, {1})
        assert pool.tables.keys() == {1}


def test_drafts_are_looked_up_by_default() -> None:
    engine = drafting_engine(random_qwen3(), Endless(), None, 30, BlockManager(20, 4))
    drafter = engine.execution.drafter.drafter  # type: ignore[attr-defined]
    assert isinstance(drafter, LookupDrafter)
    assert drafter.num_drafts == LookupDrafter().num_drafts


def test_a_closed_engine_has_freed_the_pools_of_both_models() -> None:
    blocks = BlockManager(20, 4)
    drafter = DraftModel(random_qwen3(), blocks)
    engine = Engine(random_qwen3(), Endless(), None, 30, blocks, execution=with_drafts(drafter))
    engine.generate([[5, 7, 9]], SamplingParams(max_tokens=4))
    pools = [runner.pool for runner in (engine.runner, drafter.runner)]
    assert all(pool.state for pool in pools)
    engine.close()
    assert [pool.state for pool in pools] == [[], []]


# Distributions

VOCAB_SIZE = 6
KINDS = (
    SamplingParams(0.8, top_k=4),
    SamplingParams(1.3, top_p=0.9),
    SamplingParams(1.0, min_p=0.05),
    SamplingParams(1.0),
)


class Chain:
    """A model whose next token depends on the last one alone: row t of `table` has the logits after t."""

    num_hidden_layers = 1
    config = SimpleNamespace(vocab_size=VOCAB_SIZE, max_position_embeddings=4096)
    operations = engine_operations()

    def __init__(self, seed: int) -> None:
        self.table = mx.array(np.random.default_rng(seed).normal(size=(VOCAB_SIZE, VOCAB_SIZE)) * 1.5)

    def hidden_states(self, tokens: mx.array, offset: object, caches: object) -> mx.array:
        return tokens

    def logits(self, states: mx.array) -> mx.array:
        return self.table[states]


class DraftsOfSomeLength(DraftModel):
    """A draft model of which a different number of drafts is wanted each time, at times none."""

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        return {entry.sequence.id: (7 * entry.sequence.id + entry.end) % 5 for entry in entries}


def transitions(num_requests: int = 400) -> npt.NDArray[np.int64]:
    """How often each token followed each other one, for each kind of parameters: [kinds, V, V].

    Fifty requests of mixed kinds run at once, with zero to four drafts each.
    """
    pool = BlockManager(400, 16)
    drafter = DraftsOfSomeLength(Chain(2), pool)  # type: ignore[arg-type]
    config = SchedulerConfig(400, 50)
    params = [replace(KINDS[id % len(KINDS)], seed=id, max_tokens=100) for id in range(num_requests)]
    with Engine(Chain(1), Endless(), config, 120, pool, execution=with_drafts(drafter)) as engine:  # type: ignore[arg-type]
        results = engine.generate([[id % VOCAB_SIZE] for id in range(len(params))], params)
    counts = np.zeros((len(KINDS), VOCAB_SIZE, VOCAB_SIZE), np.int64)
    for id, result in enumerate(results):
        np.add.at(
            counts[id % len(KINDS)], (np.array(result.token_ids[:-1]), np.array(result.token_ids[1:])), 1
        )
    return counts


def surprise(counts: npt.NDArray[np.int64]) -> float:
    """By how many standard deviations chi-square exceeds its mean, over all transitions."""
    chi_square, freedom = 0.0, 0
    for kind, params in enumerate(KINDS):
        batch = SamplingBatch((params,) * VOCAB_SIZE, np.zeros(VOCAB_SIZE, np.uint64))
        p: Floats = np.array(probabilities(Chain(1).table, batch)).astype(np.float64)
        expected = p / p.sum(axis=1, keepdims=True) * counts[kind].sum(axis=1, keepdims=True)
        assert not counts[kind][expected == 0].any(), f"tokens that the cuts of {params} drop"
        is_seen = expected > 0
        chi_square += float(((counts[kind] - expected)[is_seen] ** 2 / expected[is_seen]).sum())
        freedom += int(is_seen.sum() - (is_seen.sum(axis=1) > 0).sum())
    return (chi_square - freedom) / (2 * freedom) ** 0.5


@pytest.mark.usefixtures("on_cpu")
def test_drafts_of_a_model_keep_the_distribution() -> None:
    assert abs(surprise(transitions())) < 4


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("mistake", ["rows of q mixed up", "one number for both", "one stream for both"])
def test_these_statistics_notice(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "rows of q mixed up":
        expect = verifying_runner.Verifier.expect

        def expect_mixed(self: verifying_runner.Verifier, *args: object) -> None:
            expect(self, *args)  # type: ignore[arg-type]
            self._probs.reverse()

        monkeypatch.setattr(verifying_runner.Verifier, "expect", expect_mixed)
    elif mistake == "one number for both":
        monkeypatch.setattr(verifying_runner, "other_uniform", lambda batch: batch.uniform)
    else:
        monkeypatch.setattr(draft_runner, "STREAM", 0)
    assert surprise(transitions(250)) > 20
