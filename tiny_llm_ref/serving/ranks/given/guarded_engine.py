"""Watch the steps of rank 0's engine: no step may wait forever, and a lost rank ends the engine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ....model.given.optional import once_written
from ...engine import Engine, EngineStep
from ..watchdog import Watchdog

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


def guard_steps(engine: Engine, watchdog: Watchdog) -> None:
    """Let the watchdog time each step of an engine from now on.

    A step raises `RankLost` if another rank has ended. The watchdog's limit stays as it is until the optional
    task is written that fits costs.
    """
    step = engine.step

    def guarded() -> EngineStep:
        start = time.perf_counter()
        with losses_noticed(), watchdog.guard(watchdog.limit):
            done = step()
        once_written(watchdog.record)(done.scheduled, time.perf_counter() - start)
        return done

    engine.step = guarded  # type: ignore[method-assign]
