"""Numbers about an engine for the metrics: what it holds, and what its steps cost."""

from collections import deque
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from ..engine.engine import Engine, EngineStep
from ..scheduling.block_manager import BlockManager
from ..scheduling.prefix_cache import PrefixCachingBlockManager
from ..scheduling.scheduler_output import SchedulerOutput
from ..scheduling.sequence import Sequence
from ..simulation.cost_model import CostModel, fit_cost_model
from .mailbox import EngineStats, Row

NUM_STEPS, NUM_STEPS_PER_FIT = 256, 64


def drafts_of(step: EngineStep, tickets: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Number of drafts and of accepted ones, by ticket, for each request that had drafts.

    Args:
        step: what the engine computed.
        tickets: by the engine's id.
    """
    return {
        tickets[entry.sequence.id]: (len(entry.draft_ids), len(step.accepted.get(entry.sequence.id, ())))
        for entry in step.scheduled.entries
        if entry.draft_ids and entry.sequence.id in tickets
    }


class EngineMeter:
    """Measure an engine after each step. Used in the engine's thread only.

    This takes no longer if more requests wait.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[SchedulerOutput, float]] = deque(maxlen=NUM_STEPS)
        self._num_unfitted = 0
        self._running: list[Sequence] = []
        self._num_counted: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()
        self._blocks: object = None
        self._tokens = (0, 0)

    def stats_of(self, engine: Engine, num_held: int, is_failed: bool) -> EngineStats:
        """The engine in numbers, after a step.

        Args:
            engine: the engine in use.
            num_held: number of requests that are not in the engine yet.
            is_failed: whether the step failed.
        """
        scheduler = engine.scheduler
        blocks = scheduler.blocks
        num_hits, num_admitted = self._new_prefix_tokens(blocks)
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.policy) + num_held,
            num_used_blocks=blocks.num_used_blocks if isinstance(blocks, BlockManager) else 0,
            num_hit_tokens=num_hits,
            num_admitted_tokens=num_admitted,
            num_preemptions=self._new_preemptions(engine),
            num_failed_steps=int(is_failed),
        )

    def cost_after(self, output: SchedulerOutput, seconds: float) -> CostModel | None:
        """Record how long a step took. Return the costs of steps if they were fitted anew."""
        if not output.entries:
            return None
        self._steps.append((output, seconds))
        self._num_unfitted += 1
        if self._num_unfitted < NUM_STEPS_PER_FIT:
            return None
        self._num_unfitted = 0
        return fit_cost_model(self._steps)

    def _new_prefix_tokens(self, blocks: object) -> tuple[int, int]:
        """Hit and admitted tokens since the last call; a new engine counts from 0."""
        if not isinstance(blocks, PrefixCachingBlockManager):
            return 0, 0
        before = self._tokens if blocks is self._blocks else (0, 0)
        self._blocks, self._tokens = blocks, (blocks.num_hit_tokens, blocks.num_admitted_tokens)
        return self._tokens[0] - before[0], self._tokens[1] - before[1]

    def _new_preemptions(self, engine: Engine) -> int:
        """Preemptions since the last call, of what runs now and of what ran then."""
        running, number = list(engine.scheduler.running), 0
        for sequence in [*self._running, *running]:
            number += sequence.num_preemptions - self._num_counted.get(sequence, 0)
            self._num_counted[sequence] = sequence.num_preemptions
        self._running = running
        return number


def rows_of(output: SchedulerOutput, tickets: Mapping[int, int]) -> tuple[Row, ...]:
    """What a step computed, by tickets. Requests that are not in `tickets` have been aborted."""
    return tuple(
        [
            Row(tickets[entry.sequence.id], entry.start, entry.num_tokens, entry.is_prefill, entry.is_final)
            for entry in output.entries
            if entry.sequence.id in tickets
        ]
    )
