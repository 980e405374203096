"""Predict the seconds of a step from the scheduler's output, with costs fitted to measured steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..scheduling.scheduler_output import SchedulerOutput

Array = npt.NDArray[np.float64]


def context_of(output: SchedulerOutput) -> int:
    """Number of keys that the queries of a step attend to, added up; a token at position p sees p + 1."""
    return sum([n * start + n * (n + 1) // 2 for _, start, n, *_ in output.entries])


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
        if not output.entries:
            return 0.0
        return self.per_step + self.per_token * output.num_tokens + self.per_context * context_of(output)


def fit_cost_model(steps: Iterable[tuple[SchedulerOutput, float]]) -> CostModel:
    """Fit the cost model with the smallest sum of squared errors, among those without negative costs.

    Args:
        steps: output and measured seconds of each step. Steps that compute nothing are left out.

    Raises:
        ValueError: only `num_steps` steps compute anything, and three unknown costs need at least three.
    """
    measured = [(output, seconds) for output, seconds in steps if output.entries]
    if len(measured) < 3:
        raise ValueError(f"three unknown costs need at least three measured steps, got {len(measured)}")
    sizes = np.array([[1.0, output.num_tokens, context_of(output)] for output, _ in measured])
    seconds = np.array([seconds for _, seconds in measured])
    # If the unconstrained solution has a negative cost, the best valid one has zeros. Try every choice.
    columns = [list(chosen) for size in (3, 2, 1) for chosen in combinations(range(3), size)]
    solutions = [solution for chosen in columns if (solution := _solve(sizes, seconds, chosen)).min() >= 0]
    best = min(solutions, key=lambda solution: float(((sizes @ solution - seconds) ** 2).sum()))
    return CostModel(*(float(cost) for cost in best))


def _solve(sizes: Array, seconds: Array, columns: list[int]) -> Array:
    """Solve for the costs of some columns by least squares; the other costs are 0."""
    scale = sizes[:, columns].max(axis=0)
    solution = np.zeros(sizes.shape[1])
    solution[columns] = np.linalg.lstsq(sizes[:, columns] / scale, seconds, rcond=None)[0] / scale
    return solution
