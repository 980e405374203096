"""Watch the steps of rank 0's engine: no step may wait forever, and a lost rank ends the engine."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..engine.engine_request import EngineRequest
from ..engine.execution import Computed, Execution, MakeExecution
from .watchdog import Watchdog

LOSSES = ("connection to a peer was lost", "GPU Timeout")
"""Parts of what MLX says in a RuntimeError; the second, if a GPU has waited too long for another rank."""


class RankLost(BaseException):
    """Another rank has ended. No new engine would help, so this is no Exception to recover from."""

    def __init__(self) -> None:
        super().__init__("another rank has ended")


@contextmanager
def losses_noticed() -> Iterator[None]:
    """Raise `RankLost` if `receive` or MLX says in the block that another rank has ended."""
    try:
        yield
    except ConnectionError as error:
        raise RankLost from error
    except RuntimeError as error:
        if any(loss in str(error) for loss in LOSSES):
            raise RankLost from error
        raise


def is_loss(error: str) -> bool:
    """Whether a sentence of the engine's thread is about `RankLost`."""
    return error.startswith(RankLost.__name__)


class Guarded:
    """Let a watchdog time each step. A step raises `RankLost` if another rank has ended.

    Args:
        execution: computes the steps.
        watchdog: has the time limit of a step.
    """

    def __init__(self, execution: Execution, watchdog: Watchdog) -> None:
        self.execution = execution
        self.watchdog = watchdog
        self.complete = execution.complete
        self.release = execution.release
        self.close = execution.close

    def compute(self, requests: Mapping[int, EngineRequest]) -> Computed:
        """Compute the next step within the time limit."""
        start = time.perf_counter()
        with losses_noticed(), self.watchdog.guard(self.watchdog.limit):
            computed = self.execution.compute(requests)
        self.watchdog.record(computed.output, time.perf_counter() - start)
        return computed


def guarded(make_execution: MakeExecution, watchdog: Watchdog) -> MakeExecution:
    """Make the execution of an engine whose steps a watchdog times."""
    return lambda *parts: Guarded(make_execution(*parts), watchdog)
