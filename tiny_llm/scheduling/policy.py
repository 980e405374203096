"""The order of waiting sequences, and how much of the token budget a step may use."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Protocol

from .scheduler_output import SchedulerOutput
from .sequence import Sequence


class Policy(Protocol):
    """The decisions a scheduler leaves open: which sequence is next, and how large a step may be.

    A policy holds the waiting sequences. A preempted sequence is added a second time, with the `arrival` it
    had. The policy decides where it then stands. The scheduler calls `first` and `remove` in every step, so
    they must not become slower as more sequences wait.
    """

    def add(self, sequence: Sequence) -> None:
        """Add a waiting sequence. Its `arrival` and `priority` determine its place."""

    def first(self) -> Sequence | None:
        """Return the sequence that may run next, without removing it; None if none is waiting."""

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that now runs, or that was aborted."""

    def rank(self, sequence: Sequence) -> float:
        """Its place among running sequences, smallest first; never changes. The last is preempted first."""

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Record how long a step took."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Largest size of the next step. The scheduler keeps it between len(running) and limit."""

    def __len__(self) -> int:
        """Number of waiting sequences."""


class Fcfs:
    """First come, first served, with the whole budget in every step."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at the end, or in front if it arrived before the first one: it was preempted."""
        first = self.first()
        self._waiting[sequence.id] = sequence
        if first is not None and sequence.arrival < first.arrival:
            self._waiting.move_to_end(sequence.id, last=False)

    def first(self) -> Sequence | None:
        """Return the sequence that arrived first; None if none is waiting."""
        return next(iter(self._waiting.values()), None)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it stands."""
        del self._waiting[sequence.id]

    def rank(self, sequence: Sequence) -> float:
        """Its arrival."""
        return sequence.arrival

    def record(self, output: SchedulerOutput, seconds: float) -> None:
        """Ignored."""

    def token_budget(self, running: Collection[Sequence], limit: int) -> int:
        """Always the limit."""
        return limit

    def __len__(self) -> int:
        return len(self._waiting)
