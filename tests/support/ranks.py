"""Ranks as threads of one process, and engines whose other ranks follow in such threads."""

import faulthandler
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from tests.support.check import fail
from tiny_llm import Engine, Follower, LeadingModel, Qwen3Model, SchedulerConfig, Watchdog
from tiny_llm.model.given.ranks import Ranks
from tiny_llm.serving.ranks.message import Kind

T = TypeVar("T")
SECONDS = 60.0
"""How long a rank waits for the others before the test fails."""


class Meeting:
    """Where threads exchange arrays: everyone brings one, and takes the arrays of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.brought: list[tuple[str, np.ndarray[Any, Any]]] = [("", np.zeros(0))] * size

    def exchange(self, rank: int, operation: str, x: mx.array) -> list[np.ndarray[Any, Any]]:
        """The arrays of all ranks, in their order."""
        self.brought[rank] = operation, np.array(x)
        self.barrier.wait()
        brought = list(self.brought)
        self.barrier.wait()
        kinds = {(name, part.shape, part.dtype.name) for name, part in brought}
        if len(kinds) > 1:
            self.barrier.abort()
            fail(f"the ranks don't exchange the same: {sorted(map(str, kinds))}")
        return [part for _, part in brought]


class ThreadRanks:
    """A rank in a thread. It evaluates what it exchanges, unlike `MlxRanks`.

    Attributes:
        exchanged: the operation and the array's shape of each exchange.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = meeting.size
        self.meeting = meeting
        self.exchanged: list[tuple[str, tuple[int, ...]]] = []

    def all_sum(self, x: mx.array) -> mx.array:
        self.exchanged.append(("all_sum", x.shape))
        return mx.array(sum(self.meeting.exchange(self.rank, "all_sum", x)))

    def all_gather(self, x: mx.array) -> mx.array:
        self.exchanged.append(("all_gather", x.shape))
        return mx.array(np.stack(self.meeting.exchange(self.rank, "all_gather", x)))


def on_ranks(size: int, function: Callable[[ThreadRanks], T]) -> list[T]:
    """Call a function on each rank, in threads. Return what it returns, in the order of the ranks.

    Arrays belong to the thread that makes them, so it makes its own and returns numbers.
    """
    __tracebackhide__ = True
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadRanks(rank, meeting))
        except BaseException as error:
            meeting.barrier.abort()
            errors.append(error)
        finally:
            mx.synchronize()
            mx.clear_streams()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if causes or errors:
        raise (causes or errors)[0]
    return results


class LedEngine:
    """Make an engine of rank 0 in this thread, and let the other ranks follow in threads of their own.

    Args:
        kind: makes the engine, from a model and the other arguments.
        make_part: makes a rank's part of the model, in the rank's thread.
        size: number of ranks.

    Attributes:
        errors: what the others raised.
        followers: the others, once they have begun.
    """

    def __init__(
        self, kind: Callable[..., Engine], make_part: Callable[[Ranks], Qwen3Model], size: int = 2
    ) -> None:
        self.kind = kind
        self.make_part = make_part
        self.meeting = Meeting(size)
        self.errors: list[BaseException] = []
        self.followers: dict[int, Follower] = {}

    def __call__(self, model: object, *args: Any, **kwargs: Any) -> Engine:
        """Make the engine. It closes together with its followers. `model` is ignored."""
        ranks = ThreadRanks(0, self.meeting)
        threads = [threading.Thread(target=self.follow, args=(rank,)) for rank in range(1, self.meeting.size)]
        for thread in threads:
            thread.start()
        leading = LeadingModel(self.make_part(ranks), ranks, Watchdog(SchedulerConfig(64, 8), 64))
        engine = self.kind(leading, *args, **kwargs)
        close = engine.close

        def close_all() -> None:
            if not engine.is_closed:
                close()
                if not self.errors:
                    leading.tell(Kind.STOP)
                for thread in threads:
                    thread.join()
                if self.errors:
                    raise self.errors[0]

        engine.close = close_all  # type: ignore[method-assign]
        return engine

    def follow(self, rank: int) -> None:
        try:
            ranks = ThreadRanks(rank, self.meeting)
            self.followers[rank] = Follower(self.make_part(ranks), ranks)
            self.followers[rank].run()
        except BaseException as error:
            self.errors.append(error)
            self.meeting.barrier.abort()
        finally:
            faulthandler.cancel_dump_traceback_later()  # the learner's guard may not
            mx.synchronize()
            mx.clear_streams()


def same_everywhere(results: Sequence[np.ndarray[Any, Any]], what: str) -> np.ndarray[Any, Any]:
    """The result of all ranks; fails if they differ."""
    for rank, result in enumerate(results):
        if not np.array_equal(result, results[0]):
            fail(f"{what}: rank {rank} has something else than rank 0")
    return results[0]
