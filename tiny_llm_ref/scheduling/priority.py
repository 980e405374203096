"""Priorities with aging: urgent sequences go first, and no sequence waits forever."""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import NamedTuple

from .scheduler_output import SchedulerOutput
from .sequence import Sequence


class Place(NamedTuple):
    """The sort key of a waiting sequence; the smallest is next."""

    rank: float
    arrival: int
    sequence_id: int


class Priority:
    """Priority classes with aging: each class is worth `patience` places in the order of arrival.

    The rank of a sequence is arrival + patience x priority, and the smallest rank is next. If two ranks are
    equal, the earlier arrival is next. So a sequence of priority p is overtaken by fewer than patience x p
    later arrivals, whatever their priorities, and a sequence of priority 0 by none.

    Waiting sequences are in a heap. Removing one does not search the heap: its place stays there, and is
    skipped when it reaches the top. Once most places are stale, the heap is rebuilt, so it never has more
    than two places per waiting sequence.

    Args:
        patience: number of arrivals that each class is worth; 0 means first come, first served.

    Raises:
        ValueError: `patience` is negative.
    """

    def __init__(self, patience: int = 16) -> None:
        if patience < 0:
            raise ValueError(f"patience must not be negative, got {patience}")
        self.patience = patience
        self._heap: list[Place] = []
        self._waiting: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """Add a waiting sequence. It comes after smaller ranks, and after earlier arrivals of equal rank."""
        self._waiting[sequence.id] = sequence
        heappush(self._heap, self._place_of(sequence))

    def first(self) -> Sequence | None:
        """Return the sequence of the smallest rank; None if none is waiting."""
        while self._heap:
            sequence = self._waiting.get(self._heap[0].sequence_id)
            if sequence is not None and self._place_of(sequence) == self._heap[0]:
                return sequence
            heappop(self._heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence. Its place stays in the heap for now, unless most places there are stale."""
        del self._waiting[sequence.id]
        if len(self._heap) > 2 * len(self._waiting):
            self._heap = sorted(map(self._place_of, self._waiting.values()))  # sorted, it is a heap

    def rank(self, sequence: Sequence) -> float:
        """Its arrival, plus `patience` for each class below the most urgent."""
        return sequence.arrival + self.patience * sequence.priority

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Ignored."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Always the limit."""
        return limit

    def __len__(self) -> int:
        return len(self._waiting)

    def _place_of(self, sequence: Sequence) -> Place:
        return Place(self.rank(sequence), sequence.arrival, sequence.id)
