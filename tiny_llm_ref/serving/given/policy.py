"""The order of those who wait, and how much of the token budget a step may use."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Protocol

from ..sequence import Sequence
from .scheduler_output import SchedulerOutput


class Policy(Protocol):
    """What a scheduler asks about taste: who is next, and how large a step may be.

    It holds the waiting sequences. One that has run and has to wait again is added a second time, with the
    `arrival` it had; where it then stands is the policy's to say. `first` and `remove` must not take
    longer the more there are waiting: they are called in every step.
    """

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait; `arrival` and `priority` say where."""

    def first(self) -> Sequence | None:
        """The one that may run next, left where it is; None while nobody waits."""

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence that now runs, or that was aborted."""

    def rank(self, sequence: Sequence) -> float:
        """Its place among those who run, smallest first; it never changes. The last is preempted first."""

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """What a step took."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Most tokens of the next step. The scheduler keeps it within limit and one for each running."""

    def __len__(self) -> int:
        """How many wait."""


class Fcfs:
    """First come, first served, and all of the budget in every step."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        """Behind all who wait; ahead of them if it arrived before the first: it has run already."""
        first = self.first()
        self._waiting[sequence.id] = sequence
        if first is not None and sequence.arrival < first.arrival:
            self._waiting.move_to_end(sequence.id, last=False)

    def first(self) -> Sequence | None:
        """The one that waits longest."""
        return next(iter(self._waiting.values()), None)

    def remove(self, sequence: Sequence) -> None:
        """Take it out, wherever it stands."""
        del self._waiting[sequence.id]

    def rank(self, sequence: Sequence) -> float:
        """In the order of arrival."""
        return sequence.arrival

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """It does not matter here."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """The limit."""
        return limit

    def __len__(self) -> int:
        return len(self._waiting)
