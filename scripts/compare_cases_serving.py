"""The inputs of `pdm run compare` for the engine: week 3."""

from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING

from scripts.compare_cases import ByteTokenizer, case, module, normal, small_model, token_ids
from scripts.compare_cases_batching import cache_of
from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import DenseRunner, Engine, Scheduler, SchedulerOutput, Sequence, Simulator

LENGTHS = (50, 7, 129, 30, 64, 3)
OUTPUTS = (5, 9, 2, 7, 1, 12)
MAX_STEPS = 200

# week 3 day 1


def sequence_of(tiny: ModuleType, length: int, computed: int = 0, generated: int = 0) -> "Sequence":
    """A sequence on its way."""
    sequence: Sequence = tiny.Sequence(length, range(length))
    sequence.token_ids += range(generated)
    sequence.num_computed_tokens = computed
    return sequence


def rows(output: "SchedulerOutput") -> list[Tree]:
    """The entries of a step as lists."""
    return [[each.sequence.id, each.start, each.num_tokens, each.is_final] for each in output.entries]


@case("serving.sequence.Sequence")
def words(tiny: ModuleType) -> Tree:
    """48 on their way."""
    states = [
        sequence_of(tiny, 12, computed, generated) for computed, generated in product(range(12), range(4))
    ]
    return [
        [each.num_tokens, each.num_uncomputed_tokens, each.is_prefilling, each.generated_ids]
        for each in states
    ]


@case("serving.scheduler.next_tokens")
def shares(tiny: ModuleType) -> Tree:
    """200 shares."""
    next_tokens = module(tiny, "serving.scheduler").next_tokens
    grid = product(range(10), (0, 3), range(1, 11))
    return [
        list(next_tokens(sequence_of(tiny, 10, generated=generated), computed, limit)[1:])
        for computed, generated, limit in grid
    ]


def scheduler_of(tiny: ModuleType, num_copies: int = 1) -> "Scheduler":
    """Six prompts that wait, or a multiple of them."""
    config = tiny.SchedulerConfig(64, 4, 32, 2)
    scheduler: Scheduler = tiny.Scheduler(config)
    for id in range(num_copies * len(LENGTHS)):
        scheduler.add(tiny.Sequence(id, range(LENGTHS[id % len(LENGTHS)])))
    return scheduler


def served(scheduler: "Scheduler") -> list[Tree]:
    """The rows of each step until all have their tokens."""
    seen: list[Tree] = []
    while scheduler.has_work and len(seen) < MAX_STEPS:
        output = scheduler.schedule()
        seen.append(rows(output))
        scheduler.complete(output, {each.sequence.id: 1 for each in output.final})
        for each in output.final:
            if len(each.sequence.generated_ids) == OUTPUTS[each.sequence.id % len(OUTPUTS)]:
                scheduler.remove(each.sequence.id)
    return seen


@case("serving.scheduler.Scheduler.add")
def added(tiny: ModuleType) -> Tree:
    """600 that wait."""
    scheduler = scheduler_of(tiny, num_copies=100)
    return [len(scheduler.policy), [each.arrival for each in scheduler.sequences.values()]]


@case("serving.scheduler.Scheduler.complete")
def completed(tiny: ModuleType) -> Tree:
    """Counts of 30 steps."""
    scheduler = scheduler_of(tiny)
    seen: list[Tree] = []
    for _ in range(30):
        output = scheduler.schedule()
        scheduler.complete(output, {each.sequence.id: each.sequence.id for each in output.final})
        seen.append([[each.num_computed_tokens, each.num_tokens] for each in scheduler.running])
    return seen


@case("serving.scheduler.Scheduler.remove")
def removed(tiny: ModuleType) -> Tree:
    """Who waits, who runs."""
    scheduler = scheduler_of(tiny)
    scheduler.schedule()
    seen: list[Tree] = []
    for id in (1, 5, 0, 3):
        scheduler.remove(id)
        seen.append([[each.id for each in scheduler.running], len(scheduler.policy)])
    return seen


@case("serving.scheduler.Scheduler.schedule")
def scheduled(tiny: ModuleType) -> Tree:
    """6 prompts, all limits."""
    return served(scheduler_of(tiny))


@case("serving.scheduler.Scheduler.schedule")
def scheduled_long(tiny: ModuleType) -> Tree:
    """One step, 256 decode."""
    scheduler: Scheduler = tiny.Scheduler(tiny.SchedulerConfig(512, 256))
    for id in range(1000):
        scheduler.add(tiny.Sequence(id, [1]))
    output = scheduler.schedule()
    scheduler.complete(output, {each.sequence.id: 1 for each in output.final})
    return rows(scheduler.schedule())


def engine_of(tiny: ModuleType) -> "Engine":
    """An engine of three places and few tokens a step."""
    engine: Engine = tiny.Engine(small_model(tiny), ByteTokenizer(), tiny.SchedulerConfig(24, 3), 96)
    return engine


def plain(results: object) -> list[Tree]:
    """Results as lists, whatever class they are of."""
    assert isinstance(results, list | tuple)
    return [[each.prompt_idx, each.text, list(each.token_ids), each.finish_reason] for each in results]


@case("serving.runner.RowKvCaches.attend")
def attended_rows(tiny: ModuleType) -> Tree:
    """3 rows, 4 more tokens."""
    caches = [cache_of(tiny, length) for length in (5, 1, 9)]
    query, key, value = (normal(3, H, 4, 64, seed=i) for i, H in enumerate((4, 2, 2)))
    rows = module(tiny, "serving.runner").RowKvCaches(caches)
    return [rows.attend(query, key, value, tiny.scaled_dot_product_attention_grouped, "causal")]


@case("serving.runner.DenseRunner.run")
def run_steps(tiny: ModuleType) -> Tree:
    """3 sequences, 12 steps."""
    runner = tiny.DenseRunner(small_model(tiny))
    scheduler = tiny.Scheduler(tiny.SchedulerConfig(16, 3))
    for id, length in enumerate((19, 5, 29)):
        scheduler.add(tiny.Sequence(id, token_ids(length, id)))
    greedy = tiny.make_sampler(0)
    sampled: list[Tree] = []
    for _ in range(12):
        output = scheduler.schedule()
        tokens = runner.run(output, dict.fromkeys(range(3), greedy))
        scheduler.complete(output, tokens)
        sampled.append(sorted(tokens.items()))
    return {"sampled": sampled, "lengths": lengths_of(runner)}


@case("serving.runner.DenseRunner.release")
def released(tiny: ModuleType) -> Tree:
    """Caches after each."""
    engine = engine_of(tiny)
    for seed, length in enumerate((5, 7, 40)):
        engine.add_request(token_ids(length, seed))
    for _ in range(2):
        engine.step()
    seen: list[Tree] = []
    runner = engine.runner
    assert isinstance(runner, tiny.DenseRunner)
    for id in (2, 0, 1):
        runner.release(id)
        seen.append(lengths_of(runner))
    return seen


def lengths_of(runner: "DenseRunner") -> Tree:
    """Tokens in the caches of each sequence, by layer."""
    return [[id, *(layer.offset for layer in layers)] for id, layers in sorted(runner.caches.items())]


@case("serving.engine.Engine.add_request")
@case("serving.engine.Engine.step")
def stepped(tiny: ModuleType) -> Tree:
    """4 requests, each step."""
    engine = engine_of(tiny)
    ids = [
        engine.add_request(token_ids(length, seed), tiny.SamplingParams(max_tokens=2 + seed))
        for seed, length in enumerate((19, 5, 29, 11))
    ]
    seen: list[Tree] = [ids]
    while engine.has_unfinished_requests and len(seen) < MAX_STEPS:
        step = engine.step()
        seen.append([rows(step.scheduled), sorted(step.sampled.items()), plain(step.finished)])
    return seen


@case("serving.engine.Engine.abort")
def aborted(tiny: ModuleType) -> Tree:
    """One in four goes."""
    engine = engine_of(tiny)
    for seed, length in enumerate((19, 5, 29, 11)):
        engine.add_request(token_ids(length, seed), tiny.SamplingParams(max_tokens=4))
    engine.step()
    seen: list[Tree] = [engine.abort(2), engine.abort(2)]
    while engine.has_unfinished_requests and len(seen) < MAX_STEPS:
        seen.append(plain(engine.step().finished))
    return seen


@case("serving.engine.Engine.generate")
def generated(tiny: ModuleType) -> Tree:
    """4 prompts with seeds."""
    prompts = [token_ids(length, seed) for seed, length in enumerate((19, 5, 29, 11))]
    params = [tiny.SamplingParams(max_tokens=4, temp=0.7, seed=seed) for seed in range(len(prompts))]
    return plain(engine_of(tiny).generate(prompts, params))


def simulator_of(tiny: ModuleType) -> "Simulator":
    """A simulator with a cost for each part."""
    simulator: Simulator = tiny.Simulator(tiny.SchedulerConfig(64, 4), tiny.CostModel(0.5, 0.25, 0.125))
    return simulator


@case("serving.cost_model.context_of")
def contexts(tiny: ModuleType) -> Tree:
    """Of each step of a run."""
    simulator = simulator_of(tiny)
    simulator.run(tiny.SimulatedRequest(tuple(range(length)), 9) for length in LENGTHS)
    context_of = module(tiny, "serving.cost_model").context_of
    return [context_of(step.output) for step in simulator.steps]


@case("serving.cost_model.CostModel.seconds")
def costs(tiny: ModuleType) -> Tree:
    """Of each step of a run."""
    simulator = simulator_of(tiny)
    simulator.run(tiny.SimulatedRequest(tuple(range(length)), 9) for length in LENGTHS)
    return [tiny.CostModel(3.0, 0.5, 0.25).seconds(step.output) for step in simulator.steps]


@case("serving.cost_model.fit_cost_model")
def fitted(tiny: ModuleType) -> Tree:
    """To 30 steps, two ways."""
    simulator = simulator_of(tiny)
    simulator.run(tiny.SimulatedRequest(tuple(range(length)), 12) for length in LENGTHS)
    outputs = [step.output for step in simulator.steps]
    found = []
    for sign in (0.001, -0.001):
        context_of = module(tiny, "serving.cost_model").context_of
        seconds = [5.0 + 0.5 * each.num_tokens + sign * context_of(each) for each in outputs]
        cost = tiny.fit_cost_model(zip(outputs, seconds, strict=True))
        found.append([round(value, 6) for value in (cost.per_step, cost.per_token, cost.per_context)])
    return found


@case("serving.simulator.Simulator.step")
def simulated_steps(tiny: ModuleType) -> Tree:
    """6 requests at once."""
    simulator = simulator_of(tiny)
    for length, output in zip(LENGTHS, OUTPUTS, strict=True):
        simulator.add(tiny.SimulatedRequest(tuple(range(length)), output))
    seen: list[Tree] = []
    while simulator.scheduler.has_work and len(seen) < MAX_STEPS:
        step = simulator.step()
        seen.append([rows(step.output), step.start, step.end])
    return seen


@case("serving.simulator.Simulator.run")
def simulated(tiny: ModuleType) -> Tree:
    """24 that come in turn."""
    simulator = simulator_of(tiny)
    simulator.run(
        tiny.SimulatedRequest(tuple(range(LENGTHS[i % 6])), OUTPUTS[i % 6], 7.0 * i) for i in range(24)
    )
    metrics = simulator.metrics
    return {
        "ttft": [metrics.ttft(number) for number in range(24)],
        "gaps": metrics.gaps(),
        "steps": [[step.start, step.end] for step in simulator.steps],
    }


@case("serving.closed_forms.num_prefill_steps_of_two")
def two_prompts(tiny: ModuleType) -> Tree:
    """2,400 pairs."""
    grid = product((1, 7, 64, 100), range(1, 200, 20), (0, 8, 32), (8, 33, 64, 65), (1, 2, 5, 50, 1000))
    return [list(tiny.num_prefill_steps_of_two(*numbers)) for numbers in grid]
