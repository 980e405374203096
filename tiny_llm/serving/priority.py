"""Who is more urgent goes first, and who waits grows as urgent as anybody in time."""

from collections.abc import Collection
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
        raise NotImplementedError("week 3 day 5 task 2: Priority.__init__ is not written yet")

    def add(self, sequence: Sequence) -> None:
        """Behind those of a smaller rank, and those of the same that arrived before."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.add is not written yet")

    def first(self) -> Sequence | None:
        """The one of the smallest rank."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.first is not written yet")

    def remove(self, sequence: Sequence) -> None:
        """Take it out; its place stays in the heap for now."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.remove is not written yet")

    def rank(self, sequence: Sequence) -> float:
        """Its arrival, later by `patience` for each class that it is less urgent."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.rank is not written yet")

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """It does not matter here."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.record is not written yet")

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """The limit."""
        raise NotImplementedError("week 3 day 5 task 2: Priority.token_budget is not written yet")

    def __len__(self) -> int:
        raise NotImplementedError("week 3 day 5 task 2: Priority.__len__ is not written yet")
