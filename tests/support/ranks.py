"""Ranks as threads of one process, and engines whose other ranks follow in such threads."""

import faulthandler
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np

from tests.support.check import check_close, fail
from tests.support.evaluations import is_waiting, let_wait
from tiny_llm import Engine, Follower, LeadingModel, Qwen3Model, SchedulerConfig, Watchdog
from tiny_llm.model.ranks import Ranks
from tiny_llm.ranks.message import Kind

T = TypeVar("T")
Numbers = np.ndarray[Any, Any]
SECONDS = 60.0
"""How long a rank waits for the others before the test fails."""


class PeerFailed(BaseException):
    """Another rank has failed, and its own error says more."""


class Brought(NamedTuple):
    """What a rank exchanges."""

    operation: str
    numbers: Numbers

    def __str__(self) -> str:
        return f"{self.operation} of {list(self.numbers.shape)} {self.numbers.dtype}"


class Meeting:
    """Where threads exchange arrays: each rank brings one, and takes the arrays of all.

    Attributes:
        errors: what ranks have failed with, the first one first.
        evaluated: of each rank that has ended, what it exchanged and whether it evaluated what came of it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.errors: list[BaseException] = []
        self.evaluated: dict[int, list[tuple[str, bool]]] = {}
        self._changed = threading.Condition()
        self._rounds: defaultdict[int, dict[int, Brought]] = defaultdict(dict)
        self._num_rounds = [0] * size
        self._ended: set[int] = set()

    def exchange(self, rank: int, operation: str, x: mx.array) -> list[Numbers]:
        """The arrays of all ranks, in their order.

        Raises:
            PeerFailed: another rank has failed before.
            pytest.fail.Exception: another rank exchanges something else, or has ended.
        """
        own = Brought(operation, np.array(x))
        with self._changed:
            number = self._num_rounds[rank]
            self._num_rounds[rank] += 1
            brought = self._rounds[number]
            brought[rank] = own
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(brought) == self.size or self._ended - brought.keys(), timeout=SECONDS
            )
            if len(brought) < self.size:
                self._fail_alone(rank, brought)
            self._rounds.pop(number, None)
        parts = [brought[each] for each in range(self.size)]
        if len({(part.operation, part.numbers.shape, part.numbers.dtype) for part in parts}) > 1:
            calls = ", ".join(f"rank {each} calls {part}" for each, part in enumerate(parts))
            fail(f"all ranks must exchange the same in the same order, but {calls}")
        return [part.numbers for part in parts]

    def _fail_alone(self, rank: int, brought: dict[int, Brought]) -> None:
        """Say which rank is not there."""
        if self.errors:
            raise PeerFailed
        missing = min(self._ended - brought.keys() or set(range(self.size)) - brought.keys())
        why = "has ended" if missing in self._ended else f"has not come in {SECONDS:g} s"
        fail(
            "all ranks must exchange the same in the same order, "
            f"but rank {rank} waits in {brought[rank]} for rank {missing}, which {why}"
        )

    def check_evaluated(self) -> None:
        """Fail if a rank has evaluated an exchange and rank 0 has not, or the other way round."""
        __tracebackhide__ = True
        for rank, exchanges in self.evaluated.items():
            pairs = enumerate(zip(exchanges, self.evaluated[0], strict=False), 1)
            for number, ((what, is_evaluated), (_, is_by_first)) in pairs:
                if is_evaluated != is_by_first:
                    waits, other = (rank, 0) if is_evaluated else (0, rank)
                    fail(
                        f"rank {waits} evaluates exchange {number}, an {what}, "
                        f"and rank {other} doesn't: in a process of its own, rank {waits} would wait forever",
                        "MLX exchanges nothing before it is evaluated: evaluate the same on every rank.",
                    )

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Let the others know that a rank exchanges nothing more, and what it failed with."""
        with self._changed:
            if error is not None:
                self.errors.append(error)
            self._ended.add(rank)
            self._changed.notify_all()


class ThreadRanks:
    """A rank in a thread. It evaluates what it exchanges, unlike `MlxRanks`, but what comes of it is lazy.

    Attributes:
        exchanged: the operation and the array's shape of each exchange.
        results: what each was, and what came of it.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = meeting.size
        self.meeting = meeting
        self.exchanged: list[tuple[str, tuple[int, ...]]] = []
        self.results: list[tuple[str, mx.array]] = []

    def all_sum(self, x: mx.array) -> mx.array:
        return self._lazily(f"all_sum of {list(x.shape)}", sum(self._exchange("all_sum", x)))

    def all_gather(self, x: mx.array) -> mx.array:
        return self._lazily(f"all_gather of {list(x.shape)}", np.stack(self._exchange("all_gather", x)))

    def _lazily(self, what: str, numbers: Any) -> mx.array:
        result = mx.array(numbers)
        let_wait(result)
        self.results.append((what, result))
        return result

    def end(self) -> None:
        """Say that this rank has succeeded, and what it has evaluated."""
        self.meeting.evaluated[self.rank] = [(what, not is_waiting(x)) for what, x in self.results]
        self.meeting.end(self.rank)

    def _exchange(self, operation: str, x: mx.array) -> list[Numbers]:
        self.exchanged.append((operation, x.shape))
        return self.meeting.exchange(self.rank, operation, x)


class FirstOfThreads(ThreadRanks):
    """Rank 0 in the thread of the test, which reports what another rank failed with."""

    def _exchange(self, operation: str, x: mx.array) -> list[Numbers]:
        with suppress(PeerFailed):
            return super()._exchange(operation, x)
        raise self.meeting.errors[0]


def run_rank(rank: int, meeting: Meeting, function: Callable[[ThreadRanks], T]) -> T | None:
    """Call a function on a rank, in a thread of its own. None if it failed."""
    try:
        ranks = ThreadRanks(rank, meeting)
        result = function(ranks)
        ranks.end()
    except BaseException as error:
        meeting.end(rank, error)
        return None
    else:
        return result
    finally:
        mx.synchronize()
        mx.clear_streams()


def on_ranks(size: int, function: Callable[[ThreadRanks], T]) -> list[T]:
    """Call a function on each rank, in threads. Return what it returns, in the order of the ranks.

    Arrays belong to the thread that makes them, so it makes its own and returns numbers.
    """
    __tracebackhide__ = True
    meeting = Meeting(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        results[rank] = run_rank(rank, meeting, function)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if meeting.errors:
        raise meeting.errors[0]
    meeting.check_evaluated()
    return results


class LedEngine:
    """Make an engine of rank 0 in this thread, and let the other ranks follow in threads of their own.

    Args:
        kind: makes the engine, from a model and the other arguments.
        make_part: makes a rank's part of the model, in the rank's thread.
        size: number of ranks.

    Attributes:
        followers: the others, once they have begun.
    """

    def __init__(
        self, kind: Callable[..., Engine], make_part: Callable[[Ranks], Qwen3Model], size: int = 2
    ) -> None:
        self.kind = kind
        self.make_part = make_part
        self.size = size
        self.followers: dict[int, Follower] = {}

    def __call__(self, model: object, *args: Any, **kwargs: Any) -> Engine:
        """Make the engine. It closes together with its followers. `model` is ignored."""
        meeting = Meeting(self.size)
        threads = [
            threading.Thread(target=run_rank, args=(rank, meeting, self.follow))
            for rank in range(1, self.size)
        ]
        for thread in threads:
            thread.start()

        def end() -> None:
            meeting.end(0)
            for thread in threads:
                thread.join()

        ranks = FirstOfThreads(0, meeting)
        try:
            leading = LeadingModel(self.make_part(ranks), ranks, Watchdog(SchedulerConfig(64, 8), 64))
            engine = self.kind(leading, *args, **kwargs)
        except BaseException:
            end()
            raise
        close = engine.close

        def close_all() -> None:
            if engine.is_closed:
                return
            try:
                close()
                if sys.exc_info()[0] is None:  # otherwise the others may be in the middle of a step
                    leading.tell(Kind.STOP)
                    ranks.end()
            finally:
                end()
            if 0 in meeting.evaluated:
                meeting.check_evaluated()

        engine.close = close_all  # type: ignore[method-assign]
        return engine

    def follow(self, ranks: ThreadRanks) -> None:
        """What each rank but 0 does."""
        try:
            follower = self.followers[ranks.rank] = Follower(self.make_part(ranks), ranks)
            follower.run()
        finally:
            faulthandler.cancel_dump_traceback_later()  # the learner's guard may not


def check_everywhere(
    results: Sequence[Numbers], expected: Numbers, what: str, tolerance: float = 1e-5
) -> None:
    """Fail unless every rank has what is expected, as `check_close` does."""
    __tracebackhide__ = True
    for rank, result in enumerate(results):
        check_close(mx.array(result), expected, f"{what} on rank {rank}", tolerance)


def same_everywhere(results: Sequence[Numbers], what: str) -> Numbers:
    """The result of all ranks; fails if they differ."""
    __tracebackhide__ = True
    check_everywhere(results, results[0], f"{what}, compared with those of rank 0,", tolerance=0.0)
    return results[0]
