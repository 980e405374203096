"""A failed step: whatever step it is, every request gets the tokens it gets alone, except one at fault."""

from collections.abc import Sequence as Items

import pytest

from tests.support.fakes import FakeModel, continuation, prompt_of
from tests.support.server_engines import BLOCK_SIZE, ENGINES, StepFailureError, failing, make_engine
from tiny_llm import Engine, SamplingParams, ScheduledTokens, SchedulerOutput
from tiny_llm.engine import overlapped as overlapped_module
from tiny_llm.engine.engine_request import EngineRequest
from tiny_llm.engine.sampling_batch import Sampled, StepSamples, read_samples
from tiny_llm.server.recovery import RecoveringEngine

JOBS = [(5, 6), (11, 4), (3, 9), (14, 5), (2, 7), (9, 1)]  # tokens of the prompt and of the answer
MAX_STEPS = 400


def expected() -> list[list[int]]:
    return [continuation(prompt_of(length, seed), number) for seed, (length, number) in enumerate(JOBS)]


def serve(engine: RecoveringEngine) -> tuple[dict[int, EngineRequest], dict[int, Exception]]:
    """Run all jobs, the last two of them added later. Return finished and failed requests."""
    finished: dict[int, EngineRequest] = {}
    failed: dict[int, Exception] = {}
    jobs = [(prompt_of(length, seed), number) for seed, (length, number) in enumerate(JOBS)]
    for number_of_step in range(MAX_STEPS):
        while jobs and (len(jobs) > 2 or number_of_step >= 4):
            prompt, number = jobs.pop(0)
            engine.add_request(prompt, SamplingParams(max_tokens=number))
        if not engine.has_unfinished_requests:
            return finished, failed
        step = engine.step()
        finished |= {request.prompt_idx: request for request in step.finished}
        failed |= step.failed
    pytest.fail(f"the requests did not end within {MAX_STEPS} steps")


def check_nothing_held(engine: RecoveringEngine) -> None:
    blocks = engine.engine.scheduler.blocks
    assert (blocks.num_used_blocks, blocks.num_reserved, engine.held) == (0, 0, {})  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_fault_at_any_step_costs_no_request(kind: str) -> None:
    for failing_step in range(MAX_STEPS):
        num_calls = 0

        def should_fail(output: SchedulerOutput, failing_step: int = failing_step) -> bool:
            nonlocal num_calls
            num_calls += 1
            return num_calls == failing_step + 1

        engine = RecoveringEngine(lambda: failing(ENGINES[kind](), should_fail))
        finished, failed = serve(engine)
        assert failed == {}
        assert [finished[id].token_ids for id in sorted(finished)] == expected()
        check_nothing_held(engine)
        if engine.num_failed_steps == 0:
            break
    assert failing_step > (5 if kind == "speculative" else 10)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("failing_call", range(0, 40, 3))
def test_a_fault_inside_the_model(kind: str, failing_call: int) -> None:
    models = [FakeModel(fail_at=failing_call), FakeModel()]
    engine = RecoveringEngine(lambda: ENGINES[kind](models.pop(0)))
    finished, failed = serve(engine)
    assert failed == {}
    assert [finished[id].token_ids for id in sorted(finished)] == expected()
    check_nothing_held(engine)


def breaks(entry: ScheduledTokens, poison: int, num_generated: int) -> bool:
    """Whether a step with this entry fails: the poison's, once its answer has so many tokens."""
    return entry.sequence.id == poison and entry.end >= JOBS[poison][0] + num_generated


def check_only_poison_failed(engine: RecoveringEngine, poison: int, num_generated: int) -> None:
    """Serve, and expect that the poison alone fails, unless it ends before it breaks anything."""
    finished, failed = serve(engine)
    assert set(failed) == ({poison} if JOBS[poison][1] > num_generated else set())
    assert all(isinstance(error, StepFailureError) for error in failed.values())
    for id, tokens in enumerate(expected()):
        assert id in failed or finished[id].token_ids == tokens
    check_nothing_held(engine)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("poison", range(len(JOBS)))
@pytest.mark.parametrize("num_generated", [0, 1, 3])
def test_a_request_that_breaks_every_step_costs_only_itself(
    kind: str, poison: int, num_generated: int
) -> None:
    def should_fail(output: SchedulerOutput) -> bool:
        return any(breaks(entry, poison, num_generated) for entry in output.entries)

    engine = RecoveringEngine(lambda: failing(ENGINES[kind](), should_fail))
    check_only_poison_failed(engine, poison, num_generated)


@pytest.mark.parametrize("poison", range(len(JOBS)))
@pytest.mark.parametrize("num_generated", [0, 1, 3])
def test_a_fault_on_the_device_is_blamed_on_its_request(
    monkeypatch: pytest.MonkeyPatch, poison: int, num_generated: int
) -> None:
    """An overlapping engine learns of it when it reads the step, after it has prepared the next one."""

    def read_or_fail(sampled: Items[Sampled]) -> StepSamples:
        if any(breaks(entry, poison, num_generated) for each in sampled for entry in each.entries):
            raise StepFailureError
        return read_samples(sampled)

    monkeypatch.setattr(overlapped_module, "read_samples", read_or_fail)
    check_only_poison_failed(RecoveringEngine(ENGINES["overlapping"]), poison, num_generated)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("period", [2, 3, 5])
def test_steps_that_often_fail_still_end(kind: str, period: int) -> None:
    num_calls = 0

    def should_fail(output: SchedulerOutput) -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls % period == 0

    engine = RecoveringEngine(lambda: failing(ENGINES[kind](), should_fail))
    finished, failed = serve(engine)
    assert sorted([*finished, *failed]) == list(range(len(JOBS)))
    for id, request in finished.items():
        assert request.token_ids == expected()[id]
    check_nothing_held(engine)


def test_an_answer_that_ended_before_the_fault_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RecoveringEngine(make_engine)
    first, second = (
        engine.add_request(prompt_of(3, seed), SamplingParams(max_tokens=1)) for seed in range(2)
    )

    def fail(*args: object) -> None:
        raise StepFailureError

    monkeypatch.setattr(second, "accept", fail)
    step = engine.step()
    assert step.is_failed
    assert step.finished == (first,)
    assert first.token_ids == continuation(prompt_of(3, 0), 1)
    monkeypatch.undo()
    assert engine.step().finished == (second,)
    assert second.token_ids == continuation(prompt_of(3, 1), 1)


def test_the_prefix_cache_is_forgotten() -> None:
    models = [FakeModel(fail_at=2), FakeModel()]
    engine = RecoveringEngine(lambda: make_engine(model=models.pop(0)))
    prompt = prompt_of(2 * BLOCK_SIZE + 1)
    engine.add_request(prompt, SamplingParams(max_tokens=3))
    while engine.has_unfinished_requests:
        engine.step()
    assert engine.num_failed_steps == 1
    assert engine.engine.scheduler.blocks.num_hit_tokens == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_held", [False, True])
def test_abort_during_a_trial(is_held: bool) -> None:
    models = [FakeModel(fail_at=1), FakeModel()]
    engine = RecoveringEngine(lambda: make_engine(model=models.pop(0)))
    requests = [engine.add_request(prompt_of(3, seed), SamplingParams(max_tokens=4)) for seed in range(3)]
    while not engine.step().is_failed:
        pass
    assert (engine.on_trial, list(engine.held)) == (0, [1, 2])
    assert engine.abort(1 if is_held else 0)
    assert not engine.abort(1 if is_held else 0)
    while engine.has_unfinished_requests:
        engine.step()
    kept = [0, 2] if is_held else [1, 2]
    assert [id for id, request in enumerate(requests) if request.is_done] == kept
    for id in kept:
        assert requests[id].token_ids == continuation(prompt_of(3, id), 4)
    check_nothing_held(engine)


def test_a_sampled_request_draws_the_same_tokens_again() -> None:
    params = SamplingParams(temperature=1.5, seed=5, max_tokens=8, repetition_penalty=1.3, logprobs=2)
    alone = RecoveringEngine(make_engine)
    undisturbed = alone.add_request(prompt_of(5), params)
    while alone.has_unfinished_requests:
        alone.step()
    models = [FakeModel(fail_at=4), FakeModel()]
    engine = RecoveringEngine(lambda: make_engine(model=models.pop(0)))
    request = engine.add_request(prompt_of(5), params)
    while engine.has_unfinished_requests:
        engine.step()
    assert request.result() == undisturbed.result()


def test_an_engine_that_cannot_be_made_again_raises() -> None:
    def make() -> Engine:
        if num_made:
            raise MemoryError("no room")
        num_made.append(1)
        return make_engine(model=FakeModel(fail_at=0))

    num_made: list[int] = []
    engine = RecoveringEngine(make)
    engine.add_request(prompt_of(3), SamplingParams(max_tokens=1))
    with pytest.raises(MemoryError):
        engine.step()
