"""Choose the size of each step from measured times, so that gaps between tokens stay under a target."""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from kernel_runtime.limits import check_integer

from ..batching.prefill_metrics import percentile
from ..scheduling.policy import Policy
from ..scheduling.scheduler_output import SchedulerOutput
from ..scheduling.sequence import Sequence
from .cost_model import CostModel, fit_cost_model

NUM_STEPS_PER_FIT = 16
NUM_RATIOS = 256
LARGEST_GROWTH = 2


@dataclass(frozen=True)
class Demand:
    """The work that running sequences have for a step.

    A step gives each running sequence one token first, so the numbers below count that token separately.

    Attributes:
        num_running: number of running sequences.
        context: number of keys that one token of each of them attends to, added up.
        prefills: for each sequence with more than one uncomputed token, in order, a pair: the number of
            tokens before the second uncomputed one, and the number of uncomputed tokens from it on.
    """

    num_running: int
    context: int
    prefills: tuple[tuple[int, int], ...]

    @property
    def least(self) -> int:
        """Size of the smallest step: one token per running sequence, and 1 if none is running."""
        return max(1, self.num_running)

    @classmethod
    def of(cls, running: Collection[Sequence]) -> "Demand":
        """Compute the demand of the running sequences."""
        behind = [each for each in running if len(each.token_ids) - each.num_computed_tokens > 1]
        prefills = [(each.num_computed_tokens + 1, each.num_uncomputed_tokens - 1) for each in behind]
        context = len(running) + sum([each.num_computed_tokens for each in running])
        return cls(len(running), context, tuple(prefills))

    def context_of(self, num_tokens: int) -> int:
        """Number of keys that the queries of a step attend to, added up, if it has `num_tokens` tokens.

        The tokens beyond one per running sequence go to the prefills, in order. What is left after them goes
        to a new prompt.

        Args:
            num_tokens: at least `least`.
        """
        spare = num_tokens - self.num_running
        context = self.context
        for start, missing in (*self.prefills, (0, spare)):
            count = min(spare, missing)
            context += count * start + count * (count + 1) // 2
            spare -= count
        return context


class LatencyTarget:
    """Choose the budget of each step so that 99 of 100 steps stay under a target time.

    A decoding sequence gets a token in every step, so the gap between two tokens of a stream is the duration
    of a step. The policy learns durations: it fits a cost model to the most recent steps, and multiplies the
    prediction by the 99th percentile of the ratios of measured to predicted time.

    Args:
        order: the policy that orders the waiting sequences. Its own budget is not used.
        target_ms: longest duration of a step, in milliseconds.
        first_budget: until costs are known, a step has at most this many tokens beyond `Demand.least`.
        window: number of steps that the costs are fitted to.

    Attributes:
        cost: the fitted costs; None until 16 steps have been measured.
        factor: 99th percentile of measured time / predicted time; 1 until there is a ratio.

    Raises:
        ValueError: the target is not above 0, first_budget is below 1, or the window is below 16.
    """

    def __init__(self, order: Policy, target_ms: float, first_budget: int = 16, window: int = 64) -> None:
        if not target_ms > 0:
            raise ValueError(f"target_ms must be above 0 milliseconds, got {target_ms}")
        check_integer("first_budget", first_budget, 1)
        check_integer("window", window, NUM_STEPS_PER_FIT)
        self.order = order
        self.target_ms = target_ms
        self.first_budget = first_budget
        self.cost: CostModel | None = None
        self.factor = 1.0
        self.steps: deque[tuple[SchedulerOutput, float]] = deque(maxlen=window)
        self.ratios: deque[float] = deque(maxlen=NUM_RATIOS)
        self._num_recorded = 0

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Learn from a measured step. Update `factor` after every step and refit `cost` after every 16th.

        Ignore a step without entries. A step that is predicted to take no time has no ratio. Pass every step
        on to `order` as well.
        """
        self.order.record(output, seconds)
        if not output.entries:
            return
        if self.cost is not None and (predicted := self.cost.seconds(output)):
            self.ratios.append(seconds / predicted)
            self.factor = percentile(self.ratios, 99) or 1.0
        self.steps.append((output, seconds))
        self._num_recorded += 1
        if self._num_recorded % NUM_STEPS_PER_FIT == 0:
            self.cost = fit_cost_model(self.steps)

    def predicted_ms(self, demand: Demand, num_tokens: int) -> float:
        """Predicted milliseconds of a step of `num_tokens`, at the 99th percentile; 0 without costs."""
        if self.cost is None:
            return 0.0
        context = demand.context_of(num_tokens)
        seconds = self.cost.per_step + self.cost.per_token * num_tokens + self.cost.per_context * context
        return 1e3 * self.factor * seconds

    def can_meet(self, running: Collection[Sequence]) -> bool:
        """Whether the smallest step, with one token per running sequence, stays under the target."""
        demand = Demand.of(running)
        return self.predicted_ms(demand, demand.least) <= self.target_ms

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Largest budget whose step is predicted to stay under the target, but never below `Demand.least`.

        Far beyond measured sizes, a prediction is a guess. So the budget is at most twice the size of the
        largest step in the window, unless `Demand.least` is larger.
        """
        demand = Demand.of(running)
        limit = max(limit, demand.least)
        if self.cost is None:
            return min(limit, demand.least + self.first_budget)
        most = min(limit, LARGEST_GROWTH * max(output.num_tokens for output, _ in self.steps))
        budgets = range(demand.least, max(demand.least, most) + 1)
        num_met = bisect_right(budgets, self.target_ms, key=lambda budget: self.predicted_ms(demand, budget))
        return budgets[max(num_met, 1) - 1]

    def add(self, sequence: Sequence) -> None:
        """Pass on to `order`."""
        self.order.add(sequence)

    def first(self) -> Sequence | None:
        """Return the first sequence of `order`."""
        return self.order.first()

    def remove(self, sequence: Sequence) -> None:
        """Pass on to `order`."""
        self.order.remove(sequence)

    def rank(self, sequence: Sequence) -> float:
        """Return the rank in `order`."""
        return self.order.rank(sequence)

    def __len__(self) -> int:
        return len(self.order)
