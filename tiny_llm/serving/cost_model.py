"""What a step costs in seconds, as a function of what the scheduler chose, fitted to measured steps."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .given.scheduler_output import SchedulerOutput

Array = npt.NDArray[np.float64]


def context_of(output: SchedulerOutput) -> int:
    """How many keys the queries of a step attend to, over all of them; a token at position p sees p + 1."""
    raise NotImplementedError("week 3 day 1 task 6: context_of is not written yet")


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: a + b x its tokens + c x its context.

    Raises:
        ValueError: a cost is negative or not a number.
    """

    per_step: float
    per_token: float
    per_context: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_step", "per_token", "per_context"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def seconds(self, output: SchedulerOutput) -> float:
        """What a step takes; nothing if it computes nothing."""
        raise NotImplementedError("week 3 day 1 task 6: CostModel.seconds is not written yet")


def fit_cost_model(steps: Iterable[tuple[SchedulerOutput, float]]) -> CostModel:
    """The cost model with the least sum of squared errors among those without a negative cost.

    Args:
        steps: what steps computed, and the seconds each took. Those that compute nothing are left out.

    Raises:
        ValueError: `num_steps` that compute something are fewer than three, for three unknowns.
    """
    raise NotImplementedError("week 3 day 1 task 6: fit_cost_model is not written yet")
