"""The serving benchmark: its loads, its sides, its capacity, and a small run of all of it."""

import itertools
import json
from collections import deque
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benches.capacity import CapacityLimits, capacity, simulate_load
from benches.load import (
    ANSWER,
    LONG_PROMPT,
    SHORT_PROMPT,
    LoadRequest,
    mixed_load,
    take,
    with_poisson_arrivals,
)
from benches.serving_report import cell, ratio
from benches.sides import ONE_BUDGET, WHOLE, serve_open_loop
from tests.support.checkpoints import save_small_model
from tests.support.commands import run
from tiny_llm import (
    CostModel,
    RequestTimes,
    SamplingParams,
    SchedulerConfig,
    ServingMetrics,
    SimulatedRequest,
    Simulator,
    Slo,
)

STREAM = list(range(1000, 1997))

pytestmark = [pytest.mark.usefixtures("busy_is_accepted"), pytest.mark.sampled(3, "benches/")]


def test_a_mixed_load_is_that_of_its_seed() -> None:
    load = mixed_load(STREAM, 40, 3)
    assert load == mixed_load(STREAM, 40, 3)
    assert load != mixed_load(STREAM, 40, 4)
    lengths = [len(request.prompt_ids) for request in load]
    is_long = [LONG_PROMPT[0] <= length <= LONG_PROMPT[1] for length in lengths]
    assert sum(is_long) == 10
    assert all(
        SHORT_PROMPT[0] <= n <= SHORT_PROMPT[1]
        for n, is_one in zip(lengths, is_long, strict=True)
        if not is_one
    )
    assert is_long != sorted(is_long, reverse=True)
    assert all(ANSWER[0] <= request.num_output_tokens <= ANSWER[1] for request in load)
    first = load[0].prompt_ids
    assert first == take(STREAM, STREAM.index(first[0]), len(first))


def test_arrivals_are_poisson_and_scale_with_the_rate() -> None:
    load = mixed_load(STREAM, 2000, 3)
    slow, fast = (with_poisson_arrivals(load, rate, 5) for rate in (2.0, 8.0))
    assert [request.prompt_ids for request in slow] == [request.prompt_ids for request in load]
    assert [each.arrival for each in slow] == pytest.approx([4 * each.arrival for each in fast])
    gaps = [b.arrival - a.arrival for a, b in itertools.pairwise(slow)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.1)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1), "as wide as its mean: exponential"


class OneAtATime:
    """Takes a second a step and a step a request; time passes in steps and in sleep alone."""

    def __init__(self) -> None:
        self.times: dict[int, RequestTimes] = {}
        self.seconds = 0.0

    @property
    def has_work(self) -> bool:
        return any(not request.is_done for request in self.times.values())

    def submit(self, prompt: list[int], params: SamplingParams, arrival: float) -> None:
        assert arrival <= self.seconds
        self.times[len(self.times)] = RequestTimes(arrival)

    def step(self) -> None:
        request = next(request for request in self.times.values() if not request.is_done)
        self.seconds += 1.0
        request.tokens.append(self.seconds)
        request.is_done = True


def test_the_load_does_not_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    server = OneAtATime()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        server.seconds += seconds

    monkeypatch.setattr("benches.sides.time.sleep", sleep)
    pending = deque(LoadRequest((1,), 1, arrival) for arrival in (0.5, 0.75, 1.0, 9.0))
    serve_open_loop(server, pending, 100.0)
    assert slept == [0.5, 5.5]
    assert [request.ttft for request in server.times.values()] == [1.0, 1.75, 2.5, 1.0]


def test_a_run_is_cut_off_at_its_limit() -> None:
    server = OneAtATime()
    pending = deque(LoadRequest((1,), 1, arrival) for arrival in (0.0, 0.0, 0.0, 5.0))
    serve_open_loop(server, pending, 2.0)
    assert [request.is_done for request in server.times.values()] == [True, True, False]
    assert len(pending) == 1


def test_the_simulated_times_are_those_of_the_simulator() -> None:
    load = with_poisson_arrivals(mixed_load(STREAM, 30, 3), 20.0, 3)
    config, cost = SchedulerConfig(64, 4), CostModel(0.01, 1e-4, 1e-7)
    times = simulate_load(load, config, cost)
    simulator = Simulator(config, cost)
    simulator.run(SimulatedRequest(each.prompt_ids, each.num_output_tokens, each.arrival) for each in load)
    assert [each.ttft for each in times] == [simulator.metrics.ttft(i) for i in range(30)]
    assert [each.gaps for each in times] == [simulator.metrics.gaps(i) for i in range(30)]
    first_step = {
        i: next(s.start for s in simulator.steps if any(e.sequence.id == i for e in s.output.entries))
        for i in range(30)
    }
    assert [each.scheduled for each in times] == [first_step[i] for i in range(30)]


@pytest.mark.parametrize("bound", [0.013, 1.0, 39.0])
def test_the_capacity_is_the_highest_rate_that_is_kept(bound: float) -> None:
    found = capacity(lambda rate: rate <= bound, 10.0)
    assert found is not None
    assert bound / 1.021 < found <= bound


def test_there_may_be_no_rate_that_is_kept() -> None:
    assert capacity(lambda rate: False, 10.0) is None


def metrics_of(itl: float, queue: float) -> ServingMetrics:
    times = RequestTimes(0.0, queue, [1.0, 1.0 + itl], is_done=True)
    return ServingMetrics.of([times], Slo(9.0, 9.0))


@pytest.mark.parametrize(
    ("itl", "queue", "are_kept"), [(0.5, 0.25, True), (0.75, 0.25, False), (0.5, 0.5, False)]
)
def test_both_limits_are_kept(itl: float, queue: float, are_kept: bool) -> None:
    assert CapacityLimits(0.5, 0.25).are_kept_by(metrics_of(itl, queue)) is are_kept


def test_a_cell_has_the_median_and_the_spread() -> None:
    assert cell([2.0, 1.0, 123.4]) == "2\n1-123"
    assert cell([]) == "-"


def test_mlx_lm_on_these_kernels_says_what_the_engine_says() -> None:
    from benches.mlx_lm_side import MlxLmRecorder, SharedKernels
    from scripts.checkpoints.models import load_by_name
    from tiny_llm import Engine
    from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

    model, tokenizer = load_by_name("qwen3-kjv-4m")
    texts = (
        "In the beginning God created the heaven and the earth.",
        "And",
        "And the LORD spake unto Moses, saying,",
    )
    prompts = [list(tokenizer.encode(text)) for text in texts]
    params = SamplingParams(max_tokens=7)
    with Engine(model, EndlessTokenizer()) as engine:
        expected = [list(result.token_ids) for result in engine.generate(prompts, params)]

    recorder = MlxLmRecorder(SharedKernels(model), batch_size=2, prefill_step=4)
    answers: list[list[int]] = [[] for _ in prompts]
    next_step = recorder.generator.next

    def noted() -> tuple[list, list]:
        chunks, tokens = next_step()
        for token in tokens:
            answers[token.uid].append(token.token)
        return chunks, tokens

    recorder.generator.next = noted
    for prompt in prompts:
        recorder.submit(prompt, params)
    while recorder.has_work:
        recorder.step()
    recorder.close()
    assert answers == expected
    computed = [0] * len(prompts)
    for event in recorder.events:
        if event.phase == "prefill":
            for index, num_tokens in event.num_tokens.items():
                assert event.starts[index] == computed[index]
                computed[index] += num_tokens
    assert computed == list(map(len, prompts))
    assert [len(times.tokens) for times in recorder.times.values()] == [7] * 3
    assert all(times.is_done and times.queue_time >= 0 for times in recorder.times.values())


def test_a_small_run_is_measured_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benches.capacity.NUM_REQUESTS", 20
    )  # a simulation of all sides at full size takes 8 s
    sides = ("one budget", "whole prompts", "three phases")
    options = [word for side in sides for word in ("--side", side)]
    result = run(
        "benches",
        "serving",
        "--requests",
        "4",
        "--repeats",
        "1",
        "--rate",
        "50",
        "--limit",
        "600",
        "--temperature",
        "0.8",
        *options,
        "--output",
        str(tmp_path / "charts"),
        "--model",
        str(save_small_model(tmp_path / "model")),
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "charts" / "serving.json").read_text())
    assert written["rate"] == 50
    assert written["settings"]["temperature"] == 0.8
    for load in ("arrivals", "all at once", "decode only", "prefill only"):
        assert list(written["runs"][load]) == list(sides)
        traces = [written["traces"][load][side][0] for side in sides]
        answers = [[len(request["tokens"]) for request in trace] for trace in traces]
        assert answers == [answers[0]] * len(sides)
        assert all(request["is_done"] for trace in traces for request in trace)
        arrivals = [[request["arrival"] for request in trace] for trace in traces]
        assert arrivals == [arrivals[0]] * len(sides)
    assert "one budget against whole prompts: longest gap " in result.stdout
    assert "capacity, simulated" in result.stdout
    ElementTree.fromstring((tmp_path / "charts" / "serving.svg").read_text())


def test_sides_are_compared_by_the_loads_that_both_have_served() -> None:
    def served(*gaps: float) -> list[ServingMetrics]:
        return [
            ServingMetrics.of([RequestTimes(0.0, 0.0, [1.0, 1.0 + gap], True)], Slo(1.0, 1.0)) for gap in gaps
        ]

    assert ratio({ONE_BUDGET: served(1.0, 2.0), WHOLE: served(2.0, 8.0, 9.0)}, "longest_itl") == "0.38x"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--side", "vllm"], "there is no side 'vllm': choose from one budget"),
        (["--rate", "0"], "rate must be positive"),
        (["--itl-target", "-3"], "itl target must be positive"),
        (["--prefill-budget", "95"], "a step without streams may be larger, not smaller"),
        (["--budget", "7"], "a step needs a token for each that runs"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options: list[str], sentence: str) -> None:
    result = run("benches", "serving", *options)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
