"""Steps that overlap: what is under way while `step` returns, and what the end of an answer discards."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx
import pytest

from tests.support.budget import rows_of
from tests.support.check import check_value_error
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.schedules import IdTokenizer, random_qwen3
from tiny_llm import (
    Engine,
    Fcfs,
    LookupDrafter,
    PrefixCachingBlockManager,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    UnlimitedBlocks,
)
from tiny_llm.engine import overlapped as overlapped_module
from tiny_llm.engine.engine_request import EngineRequest
from tiny_llm.engine.overlapped import UNREAD
from tiny_llm.engine.sampling_batch import read_samples

PROMPTS = [[5, 7, 9], [11, 3, 8, 21, 6, 2, 17]]
BLOCK_SIZE = 4


class Endless(IdTokenizer):
    """Ends no answer."""

    eos_token_ids: set[int] = set()


def engine_of(kind: Callable[..., Engine], tokenizer: IdTokenizer | None = None) -> Engine:
    blocks = PrefixCachingBlockManager(20, BLOCK_SIZE)
    return kind(random_qwen3(), tokenizer or Endless(), SchedulerConfig(8, 2), 24, blocks)


@pytest.mark.parametrize("kind", [Engine, overlapping_engine])
def test_answers_of_known_length_take_the_same_steps(kind: Callable[..., Engine]) -> None:
    with engine_of(kind) as engine:
        for prompt, max_tokens in zip(PROMPTS, (2, 4), strict=True):
            engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        steps = [engine.step() for _ in range(6) if engine.has_unfinished_requests]
    assert [rows_of(step.scheduled) for step in steps] == [
        [(0, 0, 3, True), (1, 0, 5, False)],
        [(0, 3, 1, True), (1, 5, 2, True)],
        [(1, 7, 1, True)],
        [(1, 8, 1, True)],
        [(1, 9, 1, True)],
    ]
    assert [[result.prompt_idx for result in step.finished] for step in steps] == [[], [0], [], [], [1]]


def test_the_next_step_is_under_way_when_a_step_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(overlapping_engine) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=5))
        calls: list[str] = []
        compute, async_eval = engine.runner.compute, mx.async_eval  # type: ignore[attr-defined]
        monkeypatch.setattr(engine.runner, "compute", lambda *args: calls.append("build") or compute(*args))
        monkeypatch.setattr(mx, "async_eval", lambda *args: calls.append("begin") or async_eval(*args))
        monkeypatch.setattr(
            engine.requests[0],
            "accept",
            lambda *args, _=engine.requests[0].accept: calls.append("token") or _(*args),
        )
        engine.step()
        assert calls == ["build", "begin", "build", "begin", "token"]
        engine.step()
        assert calls[5:] == ["build", "begin", "token"]


def test_an_answer_that_ends_by_itself_is_discarded_a_step_later() -> None:
    prompt = [14, 7, 9]  # its answer begins with three different tokens
    with engine_of(Engine) as engine:
        (alone,) = engine.generate([prompt], SamplingParams(max_tokens=4))

    class EndsAtThird(Endless):
        eos_token_ids = {alone.token_ids[2]}

    with engine_of(overlapping_engine, EndsAtThird()) as engine:
        engine.add_request(prompt, SamplingParams(max_tokens=9))
        engine.add_request(PROMPTS[1], SamplingParams(max_tokens=9, stop=("no such text",)))
        steps = []
        while 0 in engine.requests:
            steps.append(engine.step())
        assert steps[-1].finished[0].token_ids == alone.token_ids[:2]
        after = engine.step()
        assert 0 in {entry.sequence.id for entry in after.scheduled.entries}, (
            "it was scheduled before it ended"
        )
        assert after.sampled.keys() == {1}
        assert 0 not in {entry.sequence.id for entry in engine.step().scheduled.entries}


def test_who_is_aborted_between_two_steps_gets_nothing_of_the_one_under_way() -> None:
    with engine_of(overlapping_engine) as engine:
        for prompt in PROMPTS:
            engine.add_request(prompt, SamplingParams(max_tokens=9))
        engine.step()
        engine.step()
        assert engine.abort(0)
        assert engine.step().sampled.keys() == {1}
        assert engine.abort(1)
        assert engine.scheduler.blocks.num_used_blocks == 0  # type: ignore[attr-defined]
        assert engine.step().scheduled.entries == (), "the step under way was for nobody"
        (result,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=3))
    with engine_of(Engine) as engine:
        assert [result.token_ids] == [
            r.token_ids for r in engine.generate([PROMPTS[0]], SamplingParams(max_tokens=3))
        ]


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_a_block_that_ended_with_an_unread_token_is_found_again(num_tokens: int) -> None:
    hits = []
    for kind in (Engine, overlapping_engine):
        with engine_of(kind) as engine:
            (first,) = engine.generate([PROMPTS[1]], SamplingParams(max_tokens=num_tokens + 1))
            engine.generate([[*PROMPTS[1], *first.token_ids]], SamplingParams(max_tokens=1))
            hits.append(engine.scheduler.blocks.num_hit_tokens)  # type: ignore[attr-defined]
    assert hits[0] == hits[1] == 7 + num_tokens - (7 + num_tokens) % BLOCK_SIZE


@pytest.mark.parametrize("num_blocks", [5, 6, 7])
def test_no_prefix_keeps_an_unread_token_of_a_preempted_request(num_blocks: int) -> None:
    blocks = PrefixCachingBlockManager(num_blocks, BLOCK_SIZE, overcommit=True)
    with overlapping_engine(random_qwen3(), Endless(), SchedulerConfig(8, 3), 24, blocks) as engine:
        for first in (5, 11, 3):
            engine.add_request([first, 7, 9], SamplingParams(max_tokens=13))
        sequences = list(engine.scheduler.sequences.values())
        while engine.has_unfinished_requests:
            engine.step()
            chains = blocks.prefixes.chains.values()
            assert not any(UNREAD in prefix.token_ids for chain in chains for prefix in chain)
        preempted = sum(sequence.num_preemptions for sequence in sequences)
    assert preempted


def test_penalties_count_the_tokens_that_were_just_sampled() -> None:
    params = [SamplingParams(max_tokens=9, repetition_penalty=1.5, frequency_penalty=1.0), SamplingParams()]
    answers = []
    for kind in (Engine, overlapping_engine):
        with engine_of(kind) as engine:
            answers.append([result.token_ids for result in engine.generate(PROMPTS, params)])
    with engine_of(Engine) as engine:
        plain = engine.generate(PROMPTS, SamplingParams(max_tokens=9))
    assert answers[0] == answers[1]
    assert answers[0][0] != plain[0].token_ids, "the penalties of this test change nothing"


def test_log_probabilities_reach_steps_and_results() -> None:
    with engine_of(overlapping_engine) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=3))
        engine.add_request(PROMPTS[1], SamplingParams(max_tokens=3, logprobs=2))
        steps = [engine.step() for _ in range(4)]
    assert all(step.logprobs.keys() == step.sampled.keys() - {0} for step in steps)
    (result,) = steps[-1].finished
    assert result.logprobs == tuple(step.logprobs[1] for step in steps[1:])
    tops = [each.top[0] for each in result.logprobs]
    assert tops == [
        (token, each.logprob) for token, each in zip(result.token_ids, result.logprobs, strict=True)
    ]


def test_the_policy_learns_how_long_each_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[object, float]] = []
    clock = [0.0]

    class Learning(Fcfs):
        def record(self, output: SchedulerOutput, seconds: float) -> None:
            recorded.append((output, seconds))

    def read_late(*args: Any) -> Any:
        clock[0] += 5
        return read_samples(*args)

    def accept_late(self: EngineRequest, *args: Any) -> list[int]:
        clock[0] += 100  # the next step is under way
        return accept(self, *args)

    accept = EngineRequest.accept_all
    monkeypatch.setattr(overlapped_module, "read_samples", read_late)
    monkeypatch.setattr(EngineRequest, "accept_all", accept_late)
    blocks = PrefixCachingBlockManager(20, BLOCK_SIZE)
    with overlapping_engine(
        random_qwen3(), Endless(), SchedulerConfig(8, 2), 24, blocks, Learning(), lambda: clock[0]
    ) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=3))
        steps = [engine.step() for _ in range(3)]
    assert [output for output, _ in recorded] == [step.scheduled for step in steps]
    assert [seconds for _, seconds in recorded] == [5, 105, 105]


def test_a_step_within_a_step_is_refused() -> None:
    class Impatient(Fcfs):
        def record(self, output: SchedulerOutput, seconds: float) -> None:
            with check_value_error():
                engine.step()

    blocks = PrefixCachingBlockManager(20, BLOCK_SIZE)
    config = SchedulerConfig(8, 2)
    with overlapping_engine(random_qwen3(), Endless(), config, 24, blocks, Impatient()) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=2))
        assert [len(engine.step().finished) for _ in range(2)] == [0, 1]


def test_without_a_pool_it_is_an_engine_like_any_other() -> None:
    with overlapping_engine(
        random_qwen3(), Endless(), SchedulerConfig(8, 2), 24, UnlimitedBlocks()
    ) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=1))
        assert len(engine.step().finished) == 1


def test_an_error_closes_the_engine_and_drops_the_step_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(overlapping_engine) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=9))
        engine.step()
        monkeypatch.setattr(engine.runner, "compute", None)
        with pytest.raises(TypeError):
            engine.step()
        assert engine.is_closed
        assert engine.execution._under_way is None  # type: ignore[attr-defined]
        with check_value_error():
            engine.step()


def test_a_step_without_samples_has_ended_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    for name in ("synchronize", "async_eval"):
        original = getattr(mx, name)
        monkeypatch.setattr(
            mx, name, lambda *args, n=name, f=original: calls.append((n, sum(map(len, args)))) or f(*args)
        )
    with engine_of(overlapping_engine) as engine:
        engine.add_request([7] * 20, SamplingParams(max_tokens=2))
        engine.step()
        begun = ("async_eval", len(engine.runner.pool.state))  # type: ignore[attr-defined]
        assert calls == [begun, ("synchronize", 0), begun]


class Resting(LookupDrafter):
    """Rests in some steps; notes the tokens that it is asked to continue."""

    def __init__(self, rests: Iterable[bool]) -> None:
        super().__init__(4, 1, 3)
        self.answers = iter(rests)
        self.seen: list[int] = []

    def rests(self, sequences: Items[Sequence]) -> bool:
        return next(self.answers)

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        self.seen += [token for entry in entries for token in entry.sequence.token_ids]
        return super().wanted(entries)


def test_steps_overlap_while_the_drafter_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Resting([False, True, True, True, False, True, True, *[False] * 20])
    steps, begun = [], []
    blocks = PrefixCachingBlockManager(20, BLOCK_SIZE)
    config = SchedulerConfig(8, 2)
    with drafting_engine(
        random_qwen3(), Endless(), config, 40, blocks, drafter=drafter, overlap=True
    ) as engine:
        engine.add_request(PROMPTS[0], SamplingParams(max_tokens=25))
        while engine.has_unfinished_requests:
            steps.append(engine.step())
            begun.append(engine.execution.without.is_ahead({0: None}))  # type: ignore[attr-defined]
    assert begun[:7] == [False, True, True, False, False, True, False], "each step asks the drafter once"
    assert UNREAD not in drafter.seen
    with engine_of(Engine) as engine:
        (alone,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=21))
    assert steps[-1].finished[0].token_ids[:21] == alone.token_ids
    assert any(step.accepted for step in steps)
