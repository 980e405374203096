"""Requests that come together, that leave at any step, and that come in thousands."""

from random import Random

import pytest

from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.schedules import Arrival, IdTokenizer, check_blocks, random_qwen3, run_alone
from tiny_llm import (
    Engine,
    PrefixCachingBlockManager,
    Priority,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    Sequence,
    StructuredOutputsParams,
)

BEGINNING = [5, 7, 9, 11, 3, 8, 21, 6, 2, 17, 4, 13]
KINDS = [Engine, overlapping_engine, drafting_engine]
GRAMMAR = StructuredOutputsParams(regex="(ab|c)*d")


def engine_of(kind: type[Engine], config: SchedulerConfig) -> Engine:
    blocks = PrefixCachingBlockManager(40, 4)
    return kind(random_qwen3(), IdTokenizer(), config, 40, blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_beginning_is_computed_once(kind: type[Engine]) -> None:
    arrivals = [Arrival(0, (*BEGINNING, 2 + id), SamplingParams(max_tokens=1)) for id in range(5)]
    num_computed, results = 0, {}
    with engine_of(kind, SchedulerConfig(64, 8)) as engine:
        for arrival in arrivals:
            engine.add_request(arrival.prompt, arrival.params)
        while engine.has_unfinished_requests:
            step = engine.step()
            num_computed += step.scheduled.num_tokens
            results |= {result.prompt_idx: result.token_ids for result in step.finished}
    assert num_computed == len(BEGINNING) + 5
    assert [results[id] for id in range(5)] == [run_alone(arrival, True)[0] for arrival in arrivals]


@pytest.mark.parametrize("structured_outputs", [None, GRAMMAR])
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_leaves_at_whatever_step(kind: type[Engine], structured_outputs: object) -> None:
    """The first computes what the second shares, in the same step and in chunks, and leaves before a step."""
    params = SamplingParams(max_tokens=5, structured_outputs=structured_outputs)  # type: ignore[arg-type]
    second = Arrival(0, (*BEGINNING, 9), SamplingParams(max_tokens=5))
    for budget in (7, 64):
        for num_steps in range(9):
            with engine_of(kind, SchedulerConfig(budget, 2)) as engine:
                engine.add_request([*BEGINNING, 4], params)
                engine.add_request(second.prompt, second.params)
                finished = [result for _ in range(num_steps) for result in engine.step().finished]
                engine.abort(0)
                while engine.has_unfinished_requests:
                    finished += engine.step().finished
                    check_blocks(engine.scheduler.blocks)  # type: ignore[arg-type]
                answers = {result.prompt_idx: result.token_ids for result in finished}
                assert answers[1] == run_alone(second, True)[0], f"{budget} tokens, {num_steps} steps"
                assert engine.scheduler.blocks.num_used_blocks == 0  # type: ignore[attr-defined]


def test_ten_thousand_arrivals_with_priorities() -> None:
    random, patience = Random(7), 16
    blocks = PrefixCachingBlockManager(60, 4)
    scheduler = Scheduler(SchedulerConfig(32, 8), blocks, Priority(patience))
    sequences: list[Sequence] = []
    while scheduler.has_work or len(sequences) < 10_000:
        for _ in range(random.randrange(4)):
            if len(sequences) < 10_000:
                prompt = [random.randrange(2) for _ in range(random.randrange(1, 30))]
                size = len(prompt) + random.randrange(1, 6)
                sequences.append(Sequence(len(sequences), prompt, random.randrange(6), size))
                scheduler.add(sequences[-1])
        output = scheduler.schedule()
        scheduler.complete(output, {entry.sequence.id: 3 for entry in output.final})
        for entry in output.final:
            if entry.sequence.num_tokens == entry.sequence.max_num_tokens:
                scheduler.remove(entry.sequence.id)
    check_blocks(blocks)
    assert (blocks.num_used_blocks, blocks.num_reserved, len(scheduler.policy)) == (0, 0, 0)
    assert {blocks.block_of[prefix]: prefix for prefix in blocks.block_of} == blocks.prefix_of
    assert max(each.num_preemptions for each in sequences) > 0
    for each in sequences:
        assert each.num_preemptions <= max(0, patience * each.priority - 1)
