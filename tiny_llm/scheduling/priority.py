"""Priorities with aging: urgent sequences go first, and no sequence waits forever."""

from collections.abc import Collection
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
        raise NotImplementedError("week 3 day 5 task 2: Priority.__init__ is not written yet")

    def add(self, sequence: Sequence) -> None:
        """Add a waiting sequence. It comes after smaller ranks, and after earlier arrivals of equal rank."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.add is not written yet")

    def first(self) -> Sequence | None:
        """Return the sequence of the smallest rank; None if none is waiting."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.first is not written yet")

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence. Its place stays in the heap for now, unless most places there are stale."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.remove is not written yet")

    def rank(self, sequence: Sequence) -> float:
        """Its arrival, plus `patience` for each class below the most urgent."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.rank is not written yet")

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Ignored."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.record is not written yet")

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Always the limit."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.token_budget is not written yet")

    def __len__(self) -> int:
        raise NotImplementedError("week 3 day 5 task 2: Priority.__len__ is not written yet")
