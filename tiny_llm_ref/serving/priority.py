"""Who is more urgent goes first, and who waits grows as urgent as anybody in time."""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import NamedTuple

from .given.scheduler_output import SchedulerOutput
from .sequence import Sequence


class Place(NamedTuple):
    """Where a sequence stands among those who wait, smallest first."""

    rank: float
    arrival: int
    sequence_id: int


class Priority:
    """Priority classes with aging: a class is worth `patience` places in the order of arrival.

    A sequence ranks by arrival + patience x priority, and the smallest rank is next. So one of priority p
    is overtaken by fewer than patience x p that arrived later, whatever they are, and one of priority 0
    by nobody.

    Those that wait are in a heap. Who leaves is not searched there: its place stays, and is passed over
    when it comes to the top.

    Args:
        patience: how many later arrivals a class of priority may be overtaken by; 0 is first come, first
            served.

    Raises:
        ValueError: `patience` is negative.
    """

    def __init__(self, patience: int = 16) -> None:
        if patience < 0:
            raise ValueError(f"patience is a number of arrivals, 0 or more, got {patience}")
        self.patience = patience
        self._heap: list[Place] = []
        self._waiting: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """Behind those of a smaller rank, and those of the same that arrived before."""
        self._waiting[sequence.id] = sequence
        heappush(self._heap, self._place_of(sequence))

    def first(self) -> Sequence | None:
        """The one of the smallest rank."""
        while self._heap:
            sequence = self._waiting.get(self._heap[0].sequence_id)
            if sequence is not None and self._place_of(sequence) == self._heap[0]:
                return sequence
            heappop(self._heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Take it out; its place stays in the heap for now."""
        del self._waiting[sequence.id]

    def rank(self, sequence: Sequence) -> float:
        """Its arrival, later by `patience` for each class that it is less urgent."""
        return sequence.arrival + self.patience * sequence.priority

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """It does not matter here."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """The limit."""
        return limit

    def __len__(self) -> int:
        return len(self._waiting)

    def _place_of(self, sequence: Sequence) -> Place:
        return Place(self.rank(sequence), sequence.arrival, sequence.id)
