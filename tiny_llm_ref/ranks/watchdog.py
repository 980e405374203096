"""End a process whose step takes far too long: another rank hangs, and would never say so."""

import faulthandler
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..scheduling.scheduler import SchedulerConfig
from ..scheduling.scheduler_output import SchedulerOutput
from ..simulation.cost_model import CostModel, fit_cost_model

FIRST_SECONDS = 120.0
NUM_STEPS, NUM_STEPS_PER_FIT = 256, 16


class Watchdog:
    """Learn what steps cost, and derive how long a step may take at most.

    Args:
        config: the limits of a step.
        max_seq_len: largest number of tokens in a request.
        factor: how many times as long as predicted the largest step may take.
        at_least: seconds; no limit is below that, since a machine may be busy with other things for a moment.

    Attributes:
        limit: seconds that a step may take. Before the costs are known, the limit is `FIRST_SECONDS`: the
            first steps compile kernels. It is never above that, since costs fitted to small steps say little
            about the largest one.
    """

    def __init__(
        self, config: SchedulerConfig, max_seq_len: int, factor: float = 20.0, at_least: float = 5.0
    ) -> None:
        self.config = config
        self.max_seq_len = max_seq_len
        self.factor = factor
        self.at_least = at_least
        self.limit = FIRST_SECONDS
        self._steps: deque[tuple[SchedulerOutput, float]] = deque(maxlen=NUM_STEPS)
        self._num_recorded = 0

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Learn from a measured step. After every 16th, fit the costs to the last 256 and update the limit.

        Ignore a step without entries.
        """
        if not output.entries:
            return
        self._steps.append((output, seconds))
        self._num_recorded += 1
        if self._num_recorded % NUM_STEPS_PER_FIT == 0:
            cost = fit_cost_model(self._steps)
            learned = self.factor * self.largest_seconds(cost)
            self.limit = min(FIRST_SECONDS, max(self.at_least, learned))

    def largest_seconds(self, cost: CostModel) -> float:
        """Predicted seconds of the largest step: all tokens that it may have, each at the longest context.

        If the config has `max_num_prefill_only_tokens`, a step may have that many; otherwise, it may have
        `max_num_batched_tokens`.
        """
        num_tokens = max(self.config.max_num_batched_tokens, self.config.max_num_prefill_only_tokens or 0)
        return cost.per_step + num_tokens * (cost.per_token + self.max_seq_len * cost.per_context)

    @staticmethod
    @contextmanager
    def guard(seconds: float) -> Iterator[None]:
        """End the process with exit code 1 if the block takes longer; first print where each thread is.

        The timer doesn't depend on Python, which cannot run while a collective waits for another rank.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
