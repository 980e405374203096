"""What the server does with optional tasks, and that it goes on without them; see `test_optional.py`."""

import time
from pathlib import Path

import pytest

from http_server.speculation import DrafterFactory
from tests.support.fakes import prompt_of
from tests.support.schedules import IdTokenizer
from tests.support.server_engines import make_engine
from tiny_llm import (
    BlockManager,
    Engine,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    Watchdog,
    load,
    with_drafts,
)
from tiny_llm.engine.execution import Computed
from tiny_llm.ranks.guarded import Guarded
from tiny_llm.server.engine_meter import NUM_STEPS_PER_FIT
from tiny_llm.server.engine_thread import EngineThread
from tiny_llm.server.mailbox import Report, StepReport, Stopped

MODEL = Path(__file__).parents[2] / "models" / "qwen3-kjv-1m"


def test_the_engine_outlives_the_step_after_which_costs_are_fitted() -> None:
    reports: list[Report] = []
    thread = EngineThread(make_engine, reports.append)
    thread.start()
    for ticket in range(3):
        thread.submit(ticket, tuple(prompt_of(4, ticket)), SamplingParams(max_tokens=NUM_STEPS_PER_FIT // 2))
        while not any(has_ended(report, ticket) for report in reports):
            assert not any(isinstance(report, Stopped) for report in reports), reports[-1]
            time.sleep(0.001)
    thread.stop()
    assert thread.join(60)
    assert reports[-1] == Stopped()
    assert sum(isinstance(report, StepReport) for report in reports) > NUM_STEPS_PER_FIT


def has_ended(report: Report, ticket: int) -> bool:
    ended = report.increments if isinstance(report, StepReport) else ()
    return any(each.ticket == ticket and each.finish_reason is not None for each in ended)


def test_a_guarded_engine_outlives_the_step_after_which_costs_are_fitted() -> None:
    class Stepping:
        num_steps = 0
        complete = release = close = None

        def compute(self, requests: object) -> Computed:
            self.num_steps += 1
            entry = ScheduledTokens(Sequence(0, [1, 2, 3]), 0, 3, True)
            return Computed(SchedulerOutput((entry,)), {})

    stepping = Stepping()
    execution = Guarded(stepping, Watchdog(SchedulerConfig(4, 2), 8))  # type: ignore[arg-type]
    for _ in range(40):
        execution.compute({})
    assert stepping.num_steps == 40


@pytest.mark.usefixtures("on_cpu")
def test_an_engine_can_speculate() -> None:
    model, blocks = load(MODEL)[0], BlockManager(64, 4)
    drafter = DrafterFactory(4)(model, IdTokenizer(), blocks)
    execution = with_drafts(drafter)
    with Engine(model, IdTokenizer(), max_seq_len=64, blocks=blocks, execution=execution) as engine:
        (result,) = engine.generate([[1, 2, 3, 1, 2, 3, 1]], SamplingParams(max_tokens=40))
    assert result.token_ids
