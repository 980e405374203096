"""The JavaScript twins of the book's figures compute what the reference computes."""

import random

import pytest
from py_mini_racer import MiniRacer
from reference_runs import play

from scripts.course import ROOT
from tiny_llm_ref.chunked_prefill import (
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)

TWINS = ROOT / "book" / "viz" / "twins"
NUM_CASES = 1000


def twin(name: str) -> MiniRacer:
    """V8 with one twin loaded."""
    context = MiniRacer()
    context.eval((TWINS / f"{name}.js").read_text(encoding="utf-8"))
    return context


@pytest.fixture(scope="module")
def timeline() -> MiniRacer:
    return twin("scheduler-timeline")


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


def test_three_phases(timeline: MiniRacer) -> None:
    rng = random.Random(1)
    for _ in range(NUM_CASES):
        settings = random_run(rng)
        expected = play(settings)
        timeline.eval(f"run = TinyTwins.timeline.play({settings})".replace("'", '"'))
        run = timeline.execute("run")
        felt = timeline.execute(
            "TinyTwins.timeline.measure(run.calls, run.arrivals.map((a) => a.time), (call) => call.end)"
        )
        found = {
            "calls": [
                {key: call[key] for key in ("step", "phase", "start", "end")}
                | {"tokens": sorted((row["id"], row["tokens"]) for row in call["rows"])}
                for call in run["calls"]
            ],
            "promotions": run["promotions"],
            "arrivals": run["arrivals"],
            "numSteps": run["numSteps"],
            "ttft": [row["ttft"] for row in felt],
            "gap": [row["gap"] for row in felt],
        }
        assert found == expected, settings


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
