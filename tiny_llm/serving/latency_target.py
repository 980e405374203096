"""The size of a step from what steps took: as large as keeps the gap between two tokens under a target."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from .cost_model import CostModel
from .given.policy import Policy
from .given.scheduler_output import SchedulerOutput
from .sequence import Sequence

NUM_STEPS_PER_FIT = 16
NUM_RATIOS = 256


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
        raise NotImplementedError("week 3 day 5 task 4: Demand.of is not written yet")

    def context_of(self, num_tokens: int) -> int:
        """How many keys the queries of a step of so many tokens look at, at least `least`.

        What is left beyond one token each goes to those in prefill, in order, and after them to a prompt
        that begins.
        """
        raise NotImplementedError("week 3 day 5 task 4: Demand.context_of is not written yet")


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
        raise NotImplementedError("week 3 day 5 task 3: LatencyTarget.record is not written yet")

    def predicted_ms(self, demand: Demand, num_tokens: int) -> float:
        """What a step of so many tokens takes, at the 99th percentile; 0 while nothing is known."""
        raise NotImplementedError("week 3 day 5 task 4: LatencyTarget.predicted_ms is not written yet")

    def can_meet(self, running: Collection[Sequence]) -> bool:
        """Whether a step with one token for each that runs stays under the target."""
        raise NotImplementedError("week 3 day 5 task 5: LatencyTarget.can_meet is not written yet")

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """The largest budget whose step stays under the target; the least, where not even that one does.

        The least is a token for each that runs, 1 if nobody does. No step gets more than twice the tokens of
        the largest among the last ones: far beyond what was measured, a prediction is a guess.
        """
        raise NotImplementedError("week 3 day 5 task 5: LatencyTarget.token_budget is not written yet")

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
