"""The twins of schedules and masks compute what the reference computes."""

import json
import random
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from py_mini_racer import MiniRacer

from tests.book.reference_runs import play, play_budget
from tests.book.twins import NUM_CASES, twin_fixture
from tiny_llm.exercises.chunked_prefill import (
    chunked_attention_mask,
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)
from tiny_llm.ops.attention import causal_mask, scaled_dot_product_attention_grouped

pytestmark = pytest.mark.sampled(3, "book/viz/", "tiny_llm_ref/exercises/", "tiny_llm_ref/ops/attention.py")
timeline = twin_fixture("scheduler-timeline")


def random_run(rng: random.Random) -> dict:
    num_requests = rng.randint(1, 6)
    return {
        "prompts": [rng.choice([rng.randint(1, 6), rng.randint(1, 40)]) for _ in range(num_requests)],
        "outputs": [rng.choice([1, 2, rng.randint(1, 9)]) for _ in range(num_requests)],
        "arrivals": [rng.choice([0, 0, rng.randint(0, 12)]) for _ in range(num_requests)],
        "chunk": rng.choice([1, 64, rng.randint(1, 20)]),
        "batch": rng.randint(1, 4),
        "callCost": rng.randint(0, 9),
    }


def found_by(timeline: MiniRacer, function: str, settings: dict) -> dict:
    """A run by the twin, in the words of the reference's; without the rows of the calls, which differ."""
    timeline.eval(f"run = TinyTwins.timeline.{function}({json.dumps(settings)})", timeout_sec=10)
    run = timeline.execute("run")
    felt = timeline.execute(
        "TinyTwins.timeline.measure(run.calls, run.arrivals.map((a) => a.time), (call) => call.end)"
    )
    return run | {key: [row[key] for row in felt] for key in ("ttft", "gap")}


def calls_with(calls: list[dict], tokens_of: Callable[[list[dict]], list]) -> list[dict]:
    """Calls with what a function makes of their rows."""
    times = ("step", "phase", "start", "end")
    return [{key: call[key] for key in times} | {"tokens": tokens_of(call["rows"])} for call in calls]


def test_three_phases(timeline: MiniRacer) -> None:
    rng = random.Random(1)
    for _ in range(NUM_CASES):
        settings = random_run(rng)
        found = found_by(timeline, "play", settings)
        calls = calls_with(found["calls"], lambda rows: sorted((row["id"], row["tokens"]) for row in rows))
        assert found | {"calls": calls} == play(settings), settings


def test_one_budget(timeline: MiniRacer) -> None:
    rng = random.Random(12)
    for _ in range(NUM_CASES):
        settings = random_run(rng)
        settings |= {
            "budget": settings["batch"] + rng.choice([0, rng.randint(0, 5), rng.randint(0, 60)]),
            "threshold": rng.choice([0, 0, rng.randint(1, 20)]),
            "partial": rng.choice([0, 0, rng.randint(1, 3)]),
        }
        found = found_by(timeline, "playBudget", settings)
        calls = calls_with(
            found["calls"], lambda rows: [(row["id"], row["tokens"], row["sampled"] == 1) for row in rows]
        )
        assert found | {"calls": calls} == {**play_budget(settings), "promotions": []}, settings


def as_steps(steps: list) -> list[dict]:
    return [
        {
            "chunks": [{"id": c["id"], "tokens": c["tokens_processed"]} for c in step["prefill_chunks"]],
            "decodes": step["decode_tokens"],
        }
        for step in steps
    ]


def test_budget_schedules(timeline: MiniRacer) -> None:
    rng = random.Random(2)
    for _ in range(NUM_CASES):
        prompts = [rng.choice([rng.randint(1, 6), rng.randint(1, 50)]) for _ in range(rng.randint(0, 5))]
        outputs = [rng.randint(1, 9) for _ in range(rng.randint(0, 4))]
        budget, chunk, output = rng.randint(1, 24), rng.randint(1, 24), rng.randint(1, 9)
        requests = [{"id": i, "prompt_length": length} for i, length in enumerate(prompts)]
        found = timeline.call("TinyTwins.timeline.budgetSchedule", prompts, len(outputs), budget, chunk)
        case = (prompts, outputs, budget, chunk, output)
        assert found == as_steps(chunked_prefill_schedule(requests, len(outputs), budget, chunk)), case
        found = timeline.call("TinyTwins.timeline.repairedSchedule", prompts, outputs, budget, chunk, output)
        assert found == as_steps(repaired_prefill_schedule(requests, outputs, budget, chunk, output)), case


def test_number_of_prefill_steps(timeline: MiniRacer) -> None:
    rng = random.Random(3)
    for _ in range(NUM_CASES):
        case = rng.randint(0, 3000), rng.choice([0, rng.randint(1, 600)]), rng.randint(1, 600)
        assert timeline.call("TinyTwins.timeline.numPrefillSteps", *case) == num_prefill_steps(*case), case


masks = twin_fixture("attention-mask")


def sees(mask: mx.array) -> list[list[bool]]:
    """Where an additive mask lets a query look."""
    return (np.array(mask) == 0).tolist()


def test_right_masks(masks: MiniRacer) -> None:
    rng = random.Random(4)
    for _ in range(NUM_CASES):
        S = rng.randint(1, 24)
        L = rng.randint(1, S)
        start = rng.randint(0, S - L)
        assert masks.call("TinyTwins.masks.mask", "right", S - L, L, S) == sees(causal_mask(L, S)), (L, S)
        expected = sees(chunked_attention_mask(start, L, S))
        assert masks.call("TinyTwins.masks.mask", "right", start, L, S) == expected, (start, L, S)


def test_wrong_masks_are_the_mistakes_that_they_are_called(masks: MiniRacer) -> None:
    rng = random.Random(5)
    for _ in range(NUM_CASES):
        S = rng.randint(1, 24)
        L = rng.randint(1, S)
        start = rng.randint(0, S - L)
        everything = np.ones((L, S), dtype=bool)
        for rule, diagonal in (("off-by-one", start - 1), ("peek", start + 1), ("left", 0), ("none", S)):
            expected = np.tril(everything, diagonal).tolist()
            assert masks.call("TinyTwins.masks.mask", rule, start, L, S) == expected, (rule, start, L, S)


def test_heads_in_groups(masks: MiniRacer) -> None:
    rng = random.Random(6)
    for _ in range(NUM_CASES):
        H, groups = rng.randint(1, 8), rng.randint(1, 6)
        numbers = mx.arange(H, dtype=mx.float32).reshape(H, 1, 1)  # one key, whose value is its head's number
        query = mx.ones((H * groups, 1, 1))
        read = scaled_dot_product_attention_grouped(query, numbers, numbers).reshape(-1).tolist()
        heads = range(H * groups)
        assert [masks.call("TinyTwins.masks.kvHead", "repeat", i, H * groups, H) for i in heads] == read
        tiled = [i for _ in range(groups) for i in range(H)]
        assert [masks.call("TinyTwins.masks.kvHead", "tile", i, H * groups, H) for i in heads] == tiled
    assert masks.call("TinyTwins.masks.divisors", 12) == [1, 2, 3, 4, 6, 12]
