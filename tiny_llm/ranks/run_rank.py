"""The part of each rank in serving: rank 0 has the engine, the others follow."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..model.qwen3 import Qwen3Model
from ..model.ranks import Ranks
from ..scheduling.scheduler import SchedulerConfig
from ..scheduling.scheduler_output import SchedulerOutput
from .follower import Follower
from .guarded import RankLost, is_loss, losses_noticed
from .leading_model import LeadingModel
from .message import Kind, send, to_message
from .sleeping_ranks import SleepingRanks, inherited_pipes
from .warm_up import AloneFirst, warm_up
from .watchdog import Watchdog

LOST_EXIT_CODE = 75
"""Of a rank that ends only because another one has ended."""
LOST_SIGNAL = signal.SIGUSR1
"""What the launcher sends rank 0 when another rank has ended."""


LoadPart = Callable[[Path, Ranks, mx.Dtype | None], Qwen3Model]
"""Loads one rank's part of a checkpoint, in a type or in its own."""


class FixedWatchdog(Watchdog):
    """A watchdog whose limit stays as it has been set."""

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Learn nothing."""


class Leader:
    """What rank 0 does around its engine: load its part of the model, and let the others end.

    Args:
        ranks: all of them.
        load_part: loads rank 0's part.
    """

    def __init__(self, ranks: Ranks, load_part: LoadPart) -> None:
        self.ranks = ranks
        self._load_part = load_part
        self._stop_others: Callable[[], object] = lambda: first_failed(ranks, True)  # before `load`

    def load(
        self,
        path: Path,
        dtype: mx.Dtype | None,
        config: SchedulerConfig,
        max_seq_len: int | None = None,
        step_timeout: float | None = None,
    ) -> LeadingModel:
        """Load rank 0's part of a checkpoint, as the model of an engine with this config.

        A `step_timeout` in seconds replaces the limit that the watchdog would learn.

        Raises:
            ValueError, RankLost: as for `load_together`.
        """
        self._stop_others = lambda: None
        part = load_together(path, self.ranks, dtype, self._load_part)
        others = SleepingRanks(self.ranks, inherited_pipes())
        self._stop_others = lambda: mx.eval(send(to_message([mx.array([Kind.STOP])]), others))
        longest = max_seq_len or part.config.max_position_embeddings
        watchdog = Watchdog(config, longest)
        if step_timeout is not None:
            watchdog = FixedWatchdog(config, longest)
            watchdog.limit = step_timeout
        return LeadingModel(part, others, watchdog)

    @contextmanager
    def stopping_others(self) -> Iterator[None]:
        """Let the other ranks end after the block, or after a ValueError in it.

        If the engine fails, raise SystemExit: the others may then wait in the middle of a step.
        """
        try:
            yield
        except ValueError as error:
            if is_loss(str(error)):
                sys.exit(LOST_EXIT_CODE)
            self._end()
            raise
        self._end()

    @staticmethod
    def exit_code(error: str) -> int:
        """The exit code of rank 0 when its engine has failed for this reason."""
        return LOST_EXIT_CODE if is_loss(error) else 1

    def _end(self) -> None:
        try:
            with losses_noticed():
                self._stop_others()
        except RankLost:
            sys.exit(LOST_EXIT_CODE)


def follow(path: Path, ranks: Ranks, dtype: mx.Dtype | None, load_part: LoadPart) -> int:
    """Load this rank's part of a checkpoint and compute what rank 0 sends. Return the exit code.

    Raises:
        ValueError: as for `load_together`.
    """
    try:
        with losses_noticed():
            part = load_together(path, ranks, dtype, load_part)
            Follower(part, SleepingRanks(ranks, inherited_pipes())).run()
    except RankLost:
        return LOST_EXIT_CODE
    return 0


def load_together(path: Path, ranks: Ranks, dtype: mx.Dtype | None, load_part: LoadPart) -> Qwen3Model:
    """Load this rank's part of a checkpoint, warm it up, and wait until every rank has done so.

    Raises:
        ValueError: as `load_part` raises it, in the first rank that could not load.
        RankLost: another rank could not load, and says why, or has ended.
    """
    part, failure, alone = None, None, AloneFirst(ranks)
    try:
        part = load_part(path, alone, dtype)
        warm_up(part)
    except ValueError as error:
        failure = error
    with losses_noticed():
        first = first_failed(ranks, failure is not None)
    if failure is not None and first == ranks.rank:
        raise failure
    if part is None or first is not None:
        raise RankLost
    alone.have_met = True
    return part


def first_failed(ranks: Ranks, is_failed: bool) -> int | None:
    """Tell all ranks whether this one could not load. Return the first that could not, if any."""
    flags = np.array(ranks.all_gather(mx.array(int(is_failed))))
    return int(flags.argmax()) if flags.any() else None
