"""The size of a step from what steps took: as large as keeps the gap between two tokens under a target."""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ..batching.prefill_metrics import percentile
from .cost_model import CostModel, fit_cost_model
from .given.policy import Policy
from .given.scheduler_output import SchedulerOutput
from .sequence import Sequence

NUM_STEPS_PER_FIT = 16
NUM_RATIOS = 256
LARGEST_GROWTH = 2


@dataclass(frozen=True)
class Demand:
    """What those who run ask of a step.

    Attributes:
        num_running: how many they are.
        context: how many keys one token of each looks at.
        prefills: of each that misses more than that token: how many tokens lie before the next one, and how
            many it still misses, in order.
    """

    num_running: int
    context: int
    prefills: tuple[tuple[int, int], ...]

    @property
    def least(self) -> int:
        """The smallest step: a token for each that runs; 1 if there is nobody, for the first who waits."""
        return max(1, self.num_running)

    @classmethod
    def of(cls, running: Collection[Sequence]) -> "Demand":
        """The demand of the sequences that run."""
        behind = [each for each in running if len(each.token_ids) - each.num_computed_tokens > 1]
        prefills = [(each.num_computed_tokens + 1, each.num_uncomputed_tokens - 1) for each in behind]
        context = len(running) + sum([each.num_computed_tokens for each in running])
        return cls(len(running), context, tuple(prefills))

    def context_of(self, num_tokens: int) -> int:
        """How many keys the queries of a step of so many tokens look at, at least `least`.

        What is left beyond one token each goes to those in prefill, in order, and after them to a prompt
        that begins.
        """
        spare = num_tokens - self.num_running
        context = self.context
        for start, missing in (*self.prefills, (0, spare)):
            count = min(spare, missing)
            context += count * start + count * (count + 1) // 2
            spare -= count
        return context


class LatencyTarget:
    """Chooses the budget of each step so that 99 of 100 steps stay under a target; an order says who is next.

    Whoever decodes gets a token in every step, so the gap between two tokens of a stream is what a step
    takes. That is learned: a cost model is fitted to the last steps, and a factor on top of it says how
    much longer than predicted the 99th percentile of them took.

    Args:
        order: the policy that holds those who wait; its own budget is not asked for.
        target_ms: most milliseconds of a step.
        first_budget: tokens of a step beyond the least that it may have, until costs are known.
        window: how many steps the costs are fitted to.

    Attributes:
        cost: the fitted costs; None until 16 steps are measured.
        factor: how many times what is predicted a step takes, at the 99th percentile.

    Raises:
        ValueError: the target is not above 0, the first budget below 1, or the window below 16.
    """

    def __init__(self, order: Policy, target_ms: float, first_budget: int = 16, window: int = 64) -> None:
        if not target_ms > 0:
            raise ValueError(f"the target is a number of milliseconds above 0, got {target_ms}")
        if first_budget < 1:
            raise ValueError(f"first_budget must be at least 1, got {first_budget}")
        if window < NUM_STEPS_PER_FIT:
            raise ValueError(f"costs are fitted every {NUM_STEPS_PER_FIT} steps, to no window of {window}")
        self.order = order
        self.target_ms = target_ms
        self.first_budget = first_budget
        self.cost: CostModel | None = None
        self.factor = 1.0
        self.steps: deque[tuple[SchedulerOutput, float]] = deque(maxlen=window)
        self.ratios: deque[float] = deque(maxlen=NUM_RATIOS)
        self._num_recorded = 0

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Learn from a step: how far off its prediction was, and every 16 steps the costs anew.

        Steps without entries teach nothing, and one that is predicted to take no time has no ratio. The
        order is told as well.
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
        """What a step of so many tokens takes, at the 99th percentile; 0 while nothing is known."""
        if self.cost is None:
            return 0.0
        context = demand.context_of(num_tokens)
        seconds = self.cost.per_step + self.cost.per_token * num_tokens + self.cost.per_context * context
        return 1e3 * self.factor * seconds

    def can_meet(self, running: Collection[Sequence]) -> bool:
        """Whether a step with one token for each that runs stays under the target."""
        demand = Demand.of(running)
        return self.predicted_ms(demand, demand.least) <= self.target_ms

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """The largest budget whose step stays under the target; the least, where not even that one does.

        The least is a token for each that runs, 1 if nobody does. No step gets more than twice the tokens of
        the largest among the last ones: far beyond what was measured, a prediction is a guess.
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
        """As the order says."""
        self.order.add(sequence)

    def first(self) -> Sequence | None:
        """As the order says."""
        return self.order.first()

    def remove(self, sequence: Sequence) -> None:
        """As the order says."""
        self.order.remove(sequence)

    def rank(self, sequence: Sequence) -> float:
        """As the order says."""
        return self.order.rank(sequence)

    def __len__(self) -> int:
        return len(self.order)
