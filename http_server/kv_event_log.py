"""The events that were published, for subscribers that join late or lose messages."""

from collections import deque
from dataclasses import dataclass, field

from tiny_llm.scheduling.cache_events import CacheContents, CacheEvent


@dataclass(frozen=True)
class EventBatch:
    """The events of a step.

    Attributes:
        number: counts the batches from 0.
        seconds: when the step ended, since 1970.
        events: what happened in it, in order.
    """

    number: int
    seconds: float
    events: list[CacheEvent]


@dataclass
class EventLog:
    """Keeps the last batches one by one, and what all earlier ones together lead to.

    Args:
        most: largest number of batches to keep.
    """

    most: int
    _batches: deque[EventBatch] = field(default_factory=deque)
    _before: CacheContents = field(default_factory=CacheContents)
    _last_before: EventBatch | None = None

    def add(self, batch: EventBatch) -> None:
        """Add the batch with the next number."""
        self._batches.append(batch)
        if len(self._batches) > self.most:
            self._last_before = self._batches.popleft()
            self._before.apply(self._last_before.events)

    def since(self, number: int) -> list[EventBatch]:
        """Return batches for a subscriber that has all batches before this number.

        If it has missed some that are not kept, the first one has the number of the last of these, and leads
        to what all of them lead to, whatever the subscriber has.
        """
        kept = [batch for batch in self._batches if batch.number >= number]
        last = self._last_before
        if last is None or last.number < number:
            return kept
        return [EventBatch(last.number, last.seconds, self._before.as_events()), *kept]
