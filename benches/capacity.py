"""The highest rate of arrivals that stays within limits, found on the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benches.load import Load, mixed_load, with_poisson_arrivals
from tiny_llm import (
    CostModel,
    RequestTimes,
    SchedulerConfig,
    ServingMetrics,
    SimulatedRequest,
    Simulator,
    Slo,
)

PRECISION = 0.02  # of the rate that is found
SEEDS = (101, 102, 103)
NUM_REQUESTS = 400
FEWEST, MOST = 1e-3, 4.0  # times the rate that is guessed


@dataclass(frozen=True)
class CapacityLimits:
    """What a rate must keep: the p99 of all gaps, and the median of the time in the queue; in seconds."""

    itl_p99: float
    queue_p50: float

    def are_kept_by(self, metrics: ServingMetrics) -> bool:
        """Whether both are; a run without a gap keeps the first."""
        gap, queue = metrics.itl_p99 or 0.0, metrics.queue_p50
        return gap <= self.itl_p99 and queue is not None and queue <= self.queue_p50


def simulated_times(simulator: Simulator, requests: Sequence[SimulatedRequest]) -> list[RequestTimes]:
    """The times of the requests of a simulation that has ended, in the order of their arrival."""
    times = [RequestTimes(arrival, is_done=True) for arrival in sorted(each.arrival for each in requests)]
    for step in simulator.steps:
        for entry in step.output.entries:
            times[entry.sequence.id].record_scheduled(step.start)
            if entry.is_final:
                times[entry.sequence.id].tokens.append(step.end)
    return times


def simulate_load(load: Load, config: SchedulerConfig, cost: CostModel) -> list[RequestTimes]:
    """What the users of a load would feel by this scheduler, at these costs."""
    requests = [SimulatedRequest(each.prompt_ids, each.num_output_tokens, each.arrival) for each in load]
    simulator = Simulator(config, cost)
    simulator.run(requests)
    return simulated_times(simulator, requests)


def simulated_metrics(
    rate: float, config: SchedulerConfig, cost: CostModel, stream: Sequence[int], target: Slo
) -> ServingMetrics:
    """Mixed loads of some seeds at a rate, all requests together."""
    times: list[RequestTimes] = []
    for seed in SEEDS:
        load = with_poisson_arrivals(mixed_load(stream, NUM_REQUESTS, seed), rate, seed)
        times += simulate_load(load, config, cost)
    return ServingMetrics.of(times, target)


def capacity(is_kept: Callable[[float], bool], guess: float) -> float | None:
    """The highest rate that is kept, by bisection of its logarithm; None if not even a very low one is.

    Args:
        is_kept: whether a rate stays within the limits; of a rate that is, every lower one is taken to be.
        guess: a rate within three orders of magnitude above it.
    """
    low, high = FEWEST * guess, MOST * guess
    if not is_kept(low):
        return None
    while high > (1 + PRECISION) * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low
