"""The numbers of /metrics: each counts what its description says, once."""

import pytest

from http_server.prometheus_metrics import FINISHED, PrometheusMetrics
from http_server.record import RequestRecord
from tests.server.servers import MODEL
from tests.support.fakes import FakeModel, FakeTokenizer, prompt_of
from tests.support.server_engines import guessing_engine, make_engine
from tiny_llm import (
    BlockManager,
    CostModel,
    Engine,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
)
from tiny_llm.server.engine_meter import NUM_STEPS_PER_FIT, EngineMeter, drafts_of, rows_of
from tiny_llm.server.mailbox import EngineStats, Increment, Loaded, Row, StepReport


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    """A number, by its name."""
    labels = {"model_name": MODEL, "engine": "0"} | labels
    return metrics.registry.get_sample_value(f"vllm:{name}", labels)


@pytest.mark.parametrize("outcome", FINISHED)
def test_the_life_of_a_request_in_seconds(outcome: str) -> None:
    metrics = PrometheusMetrics(MODEL)
    metrics.ended(RequestRecord("r", 1.0, 5, 2, 7, 3.0, 7.0, 15.0, 31.0, outcome=outcome))
    found = {
        name: value(metrics, f"{name}_sum")
        for name in (
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
        )
    }
    assert list(found.values()) == [30.0, 2.0, 4.0, 8.0, 5.0, 7.0], found
    ended = {each: value(metrics, "request_success_total", finished_reason=each) for each in FINISHED}
    assert ended == {each: float(each == outcome) for each in FINISHED}


@pytest.mark.parametrize(("started", "num_waits"), [(None, 0), (3.0, 1)])
def test_what_never_happened_takes_no_time(started: float | None, num_waits: int) -> None:
    metrics = PrometheusMetrics(MODEL)
    metrics.ended(RequestRecord("r", 1.0, 5, started=started, ended=4.0, outcome="abort"))
    assert value(metrics, "e2e_request_latency_seconds_count") == 1
    assert value(metrics, "request_queue_time_seconds_count") == num_waits
    assert value(metrics, "request_prefill_time_seconds_count") == 0
    assert value(metrics, "request_decode_time_seconds_count") == 0


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            RequestRecord("r", 0.0, 5, 2, 7, 0.0, 1.5, 3.0, 4.0, outcome="stop"),
            "r prompt=5 cached=2 tokens=7 queue=0.000s ttft=1.500s total=4.000s end=stop",
        ),
        (
            RequestRecord("r", 1.0, 5, ended=2.5),
            "r prompt=5 cached=0 tokens=0 queue=- ttft=- total=1.500s end=abort",
        ),
    ],
    ids=["ended", "aborted"],
)
def test_the_line_of_the_log(caplog: pytest.LogCaptureFixture, record: RequestRecord, line: str) -> None:
    with caplog.at_level("INFO", "tiny_llm.requests"):
        record.log_line()
    assert caplog.messages == [line]


def test_a_step_in_numbers() -> None:
    metrics = PrometheusMetrics(MODEL)
    stats = EngineStats(
        2, 3, 5, num_hit_tokens=7, num_admitted_tokens=11, num_preemptions=13, num_failed_steps=1
    )
    increments = (Increment(0, (1, 2, 3), "ABC"), Increment(1, (4,), "D"), Increment(2, (), "", (), "stop"))
    metrics.loaded(Loaded(61, 40, num_blocks=20, block_size=4))
    for _ in range(2):
        metrics.step(StepReport(17, drafts={0: (3, 2), 1: (2, 0)}, increments=increments, stats=stats))
    metrics.step(StepReport(stats=EngineStats(2, 3, 5)))  # nothing was computed
    expected = {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 22,
        "prefix_cache_hits_total": 14,
        "num_preemptions_total": 26,
        "num_failed_steps_total": 2,
        "generation_tokens_total": 8,
        "iteration_tokens_total_sum": 34,
        "iteration_tokens_total_count": 2,
        "spec_decode_num_drafts_total": 4,
        "spec_decode_num_draft_tokens_total": 10,
        "spec_decode_num_accepted_tokens_total": 4,
    }
    assert {name: value(metrics, name) for name in expected} == expected
    by_position = [
        value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
        for place in range(3)
    ]
    assert by_position == [2, 2, None]
    metrics.idle()
    assert [value(metrics, name) for name in list(expected)[:3]] == [0, 0, 0]


def test_two_servers_count_for_themselves() -> None:
    first, second = PrometheusMetrics(MODEL), PrometheusMetrics(MODEL)
    first.rejected("num_queued_tokens")
    assert value(first, "admission_rejections_total", reason="num_queued_tokens") == 1
    assert value(first, "admission_rejections_total", reason="num_queued_reqs") == 0
    assert value(second, "admission_rejections_total", reason="num_queued_tokens") == 0


def test_without_a_pool_none_of_it_is_in_use() -> None:
    metrics = PrometheusMetrics(MODEL)
    metrics.step(StepReport(1))
    assert value(metrics, "kv_cache_usage_perc") == 0


# What a step says of its engine


def test_counts_of_an_engine_are_those_since_the_step_before() -> None:
    meter = EngineMeter()
    hits = []
    for _ in range(2):  # after a failed step, another engine counts from 0
        with make_engine() as engine:
            for prompt in ([1] * 9, [1] * 9, [1] * 9):
                engine.add_request(prompt, SamplingParams(max_tokens=1))
                while engine.has_unfinished_requests:
                    engine.step()
                stats = meter.stats_of(engine, 0, False)
                hits.append((stats.num_hit_tokens, stats.num_admitted_tokens))
    assert hits == [(0, 9), (8, 9), (8, 9)] * 2


def test_requests_that_are_held_wait() -> None:
    with make_engine(max_num_seqs=1) as engine:
        for _ in range(3):
            engine.add_request([1], SamplingParams(max_tokens=3))
        engine.step()
        stats = EngineMeter().stats_of(engine, 4, True)
    assert (stats.num_running, stats.num_waiting, stats.num_failed_steps) == (1, 6, 1)
    assert stats.num_used_blocks == 1


def test_each_preemption_is_counted_once() -> None:
    meter, blocks, found = EngineMeter(), BlockManager(6, 3, overcommit=True), list[int]()
    with Engine(FakeModel(), FakeTokenizer(), SchedulerConfig(8, 2), 18, blocks) as engine:  # type: ignore[arg-type]
        for seed in range(2):
            engine.add_request(prompt_of(5, seed), SamplingParams(max_tokens=9))
        sequences = list(engine.scheduler.sequences.values())
        while engine.has_unfinished_requests:
            engine.step()
            found.append(meter.stats_of(engine, 0, False).num_preemptions)
    assert max(found) == 1
    assert sum(found) == sum(sequence.num_preemptions for sequence in sequences)


def test_costs_are_fitted_after_every_so_many_steps() -> None:
    meter, cost = EngineMeter(), CostModel(2.0, 1.0)
    fits = []
    for number in range(2 * NUM_STEPS_PER_FIT + 1):
        num_tokens = 1 + number % 5
        entry = ScheduledTokens(Sequence(0, [1] * num_tokens), 0, num_tokens, True)
        output = SchedulerOutput((entry,))
        assert meter.cost_after(SchedulerOutput(()), 99.0) is None
        if (fit := meter.cost_after(output, cost.seconds(output))) is not None:
            fits.append(number + 1)
            assert (fit.per_step, fit.per_token) == pytest.approx((2.0, 1.0), abs=1e-6)
    assert fits == [NUM_STEPS_PER_FIT, 2 * NUM_STEPS_PER_FIT]


@pytest.mark.parametrize("kind", [Engine, guessing_engine])
def test_a_step_says_nothing_of_requests_without_a_ticket(kind: type[Engine]) -> None:
    with make_engine(kind, eos_token_ids=()) as engine:
        for _ in range(2):
            engine.add_request([1], SamplingParams(max_tokens=20))
        steps = [engine.step() for _ in range(2)]
    tickets = {1: 70}
    assert rows_of(steps[0].scheduled, tickets)[0][:3] == (
        70,
        0,
        1 + len(steps[0].scheduled.entries[1].draft_ids),
    )
    assert rows_of(steps[1].scheduled, tickets)[0] == Row(
        70, *steps[1].scheduled.entries[1][1:3], False, True
    )
    drafts = drafts_of(steps[1], tickets)
    assert set(drafts) == ({70} if kind is guessing_engine else set())
    for num_drafts, num_accepted in drafts.values():
        assert num_drafts == len(steps[1].scheduled.entries[1].draft_ids)
        assert num_accepted == len(steps[1].accepted.get(1, ()))
