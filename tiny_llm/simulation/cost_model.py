"""Predict the seconds of a step from the scheduler's output, with costs fitted to measured steps."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..scheduling.scheduler_output import SchedulerOutput

Array = npt.NDArray[np.float64]


def context_of(output: SchedulerOutput) -> int:
    """Number of keys that the queries of a step attend to, added up; a token at position p sees p + 1."""
    raise NotImplementedError("week 3 day 1 task 6: context_of is not written yet")


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: per_step + per_token x its tokens + per_context x its context (`context_of`).

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
        """Predicted seconds of a step; 0 if it computes nothing."""
        raise NotImplementedError("week 3 day 1 task 6: CostModel.seconds is not written yet")


def fit_cost_model(steps: Iterable[tuple[SchedulerOutput, float]]) -> CostModel:
    """Fit the cost model with the smallest sum of squared errors, among those without negative costs.

    Args:
        steps: output and measured seconds of each step. Steps that compute nothing are left out.

    Raises:
        ValueError: only `num_steps` steps compute anything, and three unknown costs need at least three.
    """
    raise NotImplementedError("week 3 day 1 task 6: fit_cost_model is not written yet")
