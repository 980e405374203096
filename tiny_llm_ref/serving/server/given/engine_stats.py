"""Numbers about an engine for the metrics: what it holds, and what its steps cost."""

import time
from collections import deque

from ....serving.block_manager import BlockManager
from ...cost_model import CostModel, fit_cost_model
from ...given.scheduler_output import SchedulerOutput
from ...prefix_cache import PrefixCachingBlockManager
from ..recovery import RecoveringEngine
from .messages import EngineStats

NUM_STEPS, NUM_STEPS_PER_FIT = 256, 64


def stats_of(recovering: RecoveringEngine) -> EngineStats:
    """The engine in numbers."""
    scheduler = recovering.engine.scheduler
    blocks = scheduler.blocks
    is_caching = isinstance(blocks, PrefixCachingBlockManager)
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.policy) + len(recovering.held),
        num_used_blocks=blocks.num_used_blocks if isinstance(blocks, BlockManager) else 0,
        num_hit_tokens=blocks.num_hit_tokens if is_caching else 0,
        num_admitted_tokens=blocks.num_admitted_tokens if is_caching else 0,
        num_preemptions=sum(sequence.num_preemptions for sequence in scheduler.sequences.values()),
        num_failed_steps=recovering.num_failed_steps,
    )


class StepCosts:
    """The costs of the latest steps, fitted again from time to time. Made and used in the engine's thread."""

    def __init__(self) -> None:
        self._steps: deque[tuple[SchedulerOutput, float]] = deque(maxlen=NUM_STEPS)
        self._num_new = 0

    def add(self, output: SchedulerOutput, seconds: float) -> CostModel | None:
        """Add a step. Return the costs if they were fitted anew."""
        if not output.entries:
            return None
        self._steps.append((output, seconds))
        self._num_new += 1
        if self._num_new < NUM_STEPS_PER_FIT:
            return None
        self._num_new = 0
        return fit_cost_model(self._steps)
