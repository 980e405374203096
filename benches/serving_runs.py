"""The runs of the serving benchmark: loads, sides in turns, costs, capacity."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benches.capacity import CapacityLimits, capacity, simulated_metrics
from benches.load import (
    LONG_PROMPT,
    Load,
    decode_load,
    mixed_load,
    prefill_load,
    token_stream,
    with_poisson_arrivals,
)
from benches.rounds import LEAST, Rounds
from benches.sides import ONE_BUDGET, SIDES, WHOLE, Limits, ServedLoad, make_sides, serve_load
from benches.speed import machine
from scripts.run.engine_recorder import EngineRecorder
from tiny_llm import (
    CostModel,
    RequestTimes,
    SamplingParams,
    SchedulerConfig,
    ServingMetrics,
    Slo,
    fit_cost_model,
)

ARRIVALS, BURST, DECODE, PREFILL = "arrivals", "all at once", "decode only", "prefill only"
DECODE_TOKENS, PREFILL_TOKENS = 64, 512
TOP_P = 0.95
ROOM = 896  # tokens of the longest request, and some


@dataclass(frozen=True)
class Settings:
    """What is asked for; rate and targets are found by measuring where they are None.

    Raises:
        ValueError: there is no such side, or a number makes no sense.
    """

    model: str
    num_requests: int
    repeats: int | None
    budget: int
    prefill_budget: int | None
    batch_size: int
    rate: float | None
    load: float
    ttft_target: float | None
    itl_target: float | None
    temperature: float
    limit: float
    sides: tuple[str, ...]
    seed: int

    def __post_init__(self) -> None:
        if unknown := [name for name in self.sides if name not in SIDES]:
            raise ValueError(f"there is no side {unknown[0]!r}: choose from {', '.join(SIDES)}")
        for name in ("rate", "load", "ttft_target", "itl_target"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name.replace('_', ' ')} must be positive, got {value}")
        if self.budget < self.batch_size:
            raise ValueError(
                f"the budget is {self.budget} and the batch size {self.batch_size}: "
                "a step needs a token for each that runs"
            )
        if self.prefill_budget is not None and self.prefill_budget < self.budget:
            raise ValueError(
                f"the prefill budget is {self.prefill_budget} and the budget {self.budget}: "
                "a step without streams may be larger, not smaller"
            )

    @property
    def params(self) -> SamplingParams:
        """How each request is sampled."""
        return SamplingParams(self.temperature, TOP_P if self.temperature else 0.0)

    @property
    def limits(self) -> Limits:
        """What a side may do in a step."""
        return Limits(self.budget, self.batch_size, LONG_PROMPT[1], ROOM, self.prefill_budget)


@dataclass(frozen=True)
class Capacity:
    """Of one side: the highest rate within the limits by the simulator, and runs at rates that were found."""

    rate: float | None
    at: dict[str, list[ServingMetrics]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """All that was measured. `runs` are metrics, `traces` the times, by load and side, a run each."""

    settings: Settings
    rate: float
    target: Slo
    limits: CapacityLimits
    cost: CostModel
    runs: dict[str, dict[str, list[ServingMetrics]]]
    traces: dict[str, dict[str, list[list[RequestTimes]]]]
    capacities: dict[str, Capacity]

    def as_json(self) -> dict[str, Any]:
        """As numbers and names."""
        return {"machine": machine(), **asdict(self)}


def measure_all(settings: Settings, checkpoint: Path, rounds: Rounds) -> Result:
    """Everything, on one model that is loaded once."""
    from scripts.checkpoints.models import load_by_name

    model, tokenizer = load_by_name(settings.model)
    stream = token_stream(settings.model, tokenizer)
    limits = settings.limits
    names = settings.sides or SIDES
    makers = make_sides(model, checkpoint, limits, list(dict.fromkeys([*names, ONE_BUDGET, WHOLE])))
    serve = Server(makers, settings.limit, settings.params)

    mixed = mixed_load(stream, settings.num_requests, settings.seed)
    cost = measured_cost([serve(name, mixed) for _ in range(2) for name in (ONE_BUDGET, WHOLE)])
    target = target_of(settings, cost)
    bursts = rounds.in_turns(names, lambda name, _: serve(name, mixed), seconds_of, BURST)
    best = bursts.get(ONE_BUDGET) or [serve(ONE_BUDGET, mixed)]
    rate = settings.rate or settings.load * median(requests_per_s(run.times, target) for run in best)
    arriving = with_poisson_arrivals(mixed, rate, settings.seed)
    decodes = decode_load(stream, settings.batch_size, DECODE_TOKENS)
    prefills = prefill_load(stream, settings.batch_size, PREFILL_TOKENS)
    served = {
        ARRIVALS: rounds.in_turns(names, lambda name, _: serve(name, arriving), p99_gap_of, ARRIVALS),
        BURST: bursts,
        DECODE: rounds.in_turns(names, lambda name, _: serve(name, decodes), seconds_of, DECODE),
        PREFILL: rounds.in_turns(names, lambda name, _: serve(name, prefills), seconds_of, PREFILL),
    }
    cost = measured_cost(
        [run for name in (ONE_BUDGET, WHOLE) for run in served[ARRIVALS].get(name, [])], cost
    )
    capacity_limits = CapacityLimits(target.itl, target.ttft / 2)
    capacities = find_capacities(settings, limits, cost, stream, capacity_limits, target, serve)
    return Result(
        settings=settings,
        rate=rate,
        target=target,
        limits=capacity_limits,
        cost=cost,
        runs=by_side(served, lambda run: ServingMetrics.of(run.times, target)),
        traces=by_side(served, lambda run: run.times),
        capacities=capacities,
    )


def seconds_of(run: ServedLoad) -> dict[str, float]:
    """Of a whole run."""
    return {"seconds": ServingMetrics.of(run.times, Slo(1.0, 1.0)).seconds}


def p99_gap_of(run: ServedLoad) -> dict[str, float]:
    """Of a run's requests; nothing of a run that was cut off before a second token."""
    gap = ServingMetrics.of(run.times, Slo(1.0, 1.0)).itl_p99
    return {"p99 gap": gap} if gap else {}


@dataclass(frozen=True)
class Server:
    """Serves loads by side."""

    makers: dict[str, Callable[[], Any]]
    limit: float
    params: SamplingParams

    def __call__(self, name: str, load: Load) -> ServedLoad:
        """One run of a fresh recorder."""
        return serve_load(self.makers[name], load, self.limit, self.params)


def by_side(
    served: dict[str, dict[str, list[ServedLoad]]], of: Callable[[ServedLoad], Any]
) -> dict[str, dict[str, list[Any]]]:
    """Something of each run."""
    return {
        load: {name: [of(run) for run in runs] for name, runs in sides.items()}
        for load, sides in served.items()
    }


def requests_per_s(times: Sequence[RequestTimes], target: Slo) -> float:
    """Answers that ended, by the seconds of the run."""
    metrics = ServingMetrics.of(times, target)
    return metrics.num_done / metrics.seconds if metrics.seconds else 0.0


def measured_cost(runs: Sequence[ServedLoad], default: CostModel | None = None) -> CostModel:
    """The costs of a step, fitted to all steps of these runs of engines."""
    steps = [
        (step.scheduled, seconds)
        for run in runs
        if isinstance(run.log, EngineRecorder)
        for step, seconds in run.log.steps
    ]
    return default if default is not None and not steps else fit_cost_model(steps)


def target_of(settings: Settings, cost: CostModel) -> Slo:
    """As asked for; else a gap of two full steps, and five times what the longest prompt alone takes."""
    longest = LONG_PROMPT[1]
    num_steps = -(-longest // settings.budget)
    context = longest * (longest + 1) / 2
    alone = num_steps * cost.per_step + longest * cost.per_token + context * cost.per_context
    full_step = alone / num_steps
    ttft = 5 * alone if settings.ttft_target is None else settings.ttft_target / 1e3
    itl = 2 * full_step if settings.itl_target is None else settings.itl_target / 1e3
    return Slo(round_up(ttft), round_up(itl))


def round_up(seconds: float) -> float:
    """To two digits."""
    return float(f"{seconds:.1e}")


def find_capacities(
    settings: Settings,
    limits: Limits,
    cost: CostModel,
    stream: Sequence[int],
    bounds: CapacityLimits,
    target: Slo,
    serve: Server,
) -> dict[str, Capacity]:
    """By the simulator for one budget and for whole prompts; each is then run there and at higher rates."""
    configs = {name: limits.configs[name] for name in (ONE_BUDGET, WHOLE)}
    seconds = mean_seconds(stream, cost)

    def is_kept(config: SchedulerConfig, rate: float) -> bool:
        return bounds.are_kept_by(simulated_metrics(rate, config, cost, stream, target))

    rates = {name: capacity(partial(is_kept, config), 1 / seconds) for name, config in configs.items()}
    found = sorted({rate for rate in rates.values() if rate is not None})
    capacities = {}
    for name in configs:
        at = {}
        lowest = rates[name] or 0.0
        for rate in (each for each in found if each >= lowest):
            loads = [
                with_poisson_arrivals(mixed_load(stream, settings.num_requests, 211 + i), rate, 211 + i)
                for i in range(settings.repeats or LEAST)
            ]
            patient = replace(serve, limit=10 * settings.limit)
            runs = [patient(name, load).times for load in loads]
            at[f"{rate:.3g}"] = [ServingMetrics.of(times, target) for times in runs]
        capacities[name] = Capacity(rates[name], at)
    return capacities


def mean_seconds(stream: Sequence[int], cost: CostModel) -> float:
    """What a request of the mixed load costs by its tokens alone."""
    load = mixed_load(stream, 100, 0)
    num_tokens = sum(len(request.prompt_ids) + request.num_output_tokens for request in load)
    return (num_tokens * cost.per_token + len(load) * cost.per_step) / len(load)
