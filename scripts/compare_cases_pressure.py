"""The inputs of `pdm run compare` for preemption, priorities and the latency target: week 3, day 5."""

from types import ModuleType
from typing import TYPE_CHECKING

from scripts.compare_cases import ByteTokenizer, case, module, small_model, token_ids
from scripts.compare_cases_serving import plain, rows, sequence_of
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import Engine, LatencyTarget, SchedulerOutput, Sequence

LENGTHS = (50, 7, 129, 30, 64, 3)
MAX_STEPS = 400


@case("serving.scheduler.Scheduler.make_room")
def made(tiny: ModuleType) -> Tree:
    """24 in a pool for 5."""
    blocks = tiny.BlockManager(20, 16, overcommit=True)
    scheduler = tiny.Scheduler(tiny.SchedulerConfig(64, 8, 32), blocks)
    for id in range(24):
        scheduler.add(tiny.Sequence(id, range(LENGTHS[id % 6]), max_num_tokens=LENGTHS[id % 6] + 40))
    sequences = list(scheduler.sequences.values())
    seen: list[Tree] = []
    while scheduler.has_work and len(seen) < MAX_STEPS:
        output = scheduler.schedule()
        seen.append(rows(output))
        scheduler.complete(output, {each.sequence.id: 1 for each in output.final})
        for each in output.final:
            if len(each.sequence.generated_ids) == 40:
                scheduler.remove(each.sequence.id)
    return {"steps": seen, "preemptions": [each.num_preemptions for each in sequences]}


@case("serving.priority.Priority")
def ordered(tiny: ModuleType) -> Tree:
    """1,000 that wait."""
    policy = tiny.Priority(patience=16)
    for id in range(1000):
        sequence = tiny.Sequence(id, [1], id * id % 5)
        sequence.arrival = id
        policy.add(sequence)
    seen: list[Tree] = []
    while (first := policy.first()) is not None:
        seen.append(first.id)
        policy.remove(first)
    return seen


@case("serving.latency_target.percentile_99")
def percentiles(tiny: ModuleType) -> Tree:
    """Of 1 to 300 values."""
    percentile_99 = module(tiny, "serving.latency_target").percentile_99
    return [percentile_99([value * 37 % 101 for value in range(count)]) for count in range(1, 301)]


def steps_of(tiny: ModuleType) -> list["SchedulerOutput"]:
    """100 steps of one sequence each."""
    outputs = []
    for i in range(100):
        sequence: Sequence = sequence_of(tiny, 200, 13 * i % 97)
        start = sequence.num_computed_tokens
        entry = tiny.ScheduledTokens(sequence, start, 1 + 7 * i % 41, False)
        outputs.append(tiny.SchedulerOutput((entry,)))
    return outputs


def learned(tiny: ModuleType, target_ms: float = 9.0) -> "LatencyTarget":
    """What has seen these steps, every seventh of them slower."""
    policy: LatencyTarget = tiny.LatencyTarget(tiny.Fcfs(), target_ms)
    for i, output in enumerate(steps_of(tiny)):
        policy.record(output, (4e-3 + 1e-4 * output.num_tokens) * (1.1 if i % 7 == 0 else 1.0))
    return policy


@case("serving.latency_target.LatencyTarget.record")
def recorded(tiny: ModuleType) -> Tree:
    """100 steps."""
    policy = learned(tiny)
    cost = policy.cost
    assert cost is not None
    found = (cost.per_step, cost.per_token, cost.per_context, policy.factor)
    return [float(f"{value:.6g}") for value in found]


def states(tiny: ModuleType) -> list["Sequence"]:
    """40 that run, some of them in prefill."""
    return [sequence_of(tiny, 60, computed) for computed in range(20, 60)]


@case("serving.latency_target.Demand.of")
def demanded(tiny: ModuleType) -> Tree:
    """40 that run."""
    demand = module(tiny, "serving.latency_target").Demand.of(states(tiny))
    return [demand.num_running, demand.context, [list(each) for each in demand.prefills]]


@case("serving.latency_target.Demand.context_of")
def contexts(tiny: ModuleType) -> Tree:
    """960 sizes of a step."""
    demand = module(tiny, "serving.latency_target").Demand.of(states(tiny))
    return [demand.context_of(num_tokens) for num_tokens in range(40, 1000)]


@case("serving.latency_target.LatencyTarget.predicted_ms")
def predicted(tiny: ModuleType) -> Tree:
    """960 sizes of a step."""
    policy, demand = learned(tiny), module(tiny, "serving.latency_target").Demand.of(states(tiny))
    return [float(f"{policy.predicted_ms(demand, num_tokens):.6g}") for num_tokens in range(40, 1000)]


@case("serving.latency_target.LatencyTarget.can_meet")
@case("serving.latency_target.LatencyTarget.token_budget")
def budgets(tiny: ModuleType) -> Tree:
    """40 targets."""
    policies = [learned(tiny, 1.0 + 0.37 * i) for i in range(40)]
    running = states(tiny)[-5:]
    return [[policy.token_budget(running, 500), policy.can_meet(running)] for policy in policies]


def interrupted(tiny: ModuleType) -> "Engine":
    """An engine whose clock aborts request 1 in its third step."""
    readings = iter(range(10_000))

    def clock() -> float:
        reading = next(readings)
        if reading == 5:
            engine.abort(1)
        return float(reading)

    config = tiny.SchedulerConfig(24, 3)
    engine: Engine = tiny.Engine(small_model(tiny), ByteTokenizer(), config, 96, clock=clock)
    for seed, length in enumerate((19, 5, 29, 11)):
        engine.add_request(token_ids(length, seed), tiny.SamplingParams(max_tokens=6))
    return engine


@case("serving.engine.Engine.abort_in_step")
@case("serving.engine.Engine.without_aborted")
def aborted(tiny: ModuleType) -> Tree:
    """One of four goes."""
    engine = interrupted(tiny)
    seen: list[Tree] = []
    while engine.has_unfinished_requests and len(seen) < MAX_STEPS:
        step = engine.step()
        seen.append([sorted(step.sampled), plain(step.finished)])
    return seen
