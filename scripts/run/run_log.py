"""What a run was: its calls of the model, and the times of its requests."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tiny_llm_ref import ChunkedPrefillMetrics, RequestTimes

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class PhaseEvent:
    """One call of a phase; seconds since the start, requests by their index.

    `num_tokens` were computed for each request, from its token number `starts` on; each of `sampled` got a
    token of its answer.
    """

    step: int
    phase: Phase
    start: float
    end: float
    num_tokens: dict[int, int]
    starts: dict[int, int]
    sampled: tuple[int, ...]


class RunLog:
    """Notes taken while something serves.

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.events: list[PhaseEvent] = []
        self.metrics = ChunkedPrefillMetrics()
        self.num_steps = 0
        self._clock = time.perf_counter if clock is None else clock
        self._start = self._clock()

    @property
    def seconds(self) -> float:
        """Since the log was begun."""
        return self._clock() - self._start

    @property
    def times(self) -> dict[int, RequestTimes]:
        """When things happened to each request, by its index."""
        return self.metrics.requests

    def record_arrival(self, index: int, arrival: float | None = None) -> None:
        """A request is there: since now, unless given."""
        arrival = self.seconds if arrival is None else arrival
        self.metrics.record_arrival(index, arrival)

    def record_event(self, event: PhaseEvent) -> None:
        """A call of the model has ended."""
        self.events.append(event)
        if event.phase == "prefill":
            self.metrics.record_chunk(sum(event.num_tokens.values()), event.end - event.start)
        for index in event.num_tokens:
            self.metrics.requests[index].record_scheduled(event.start)
        for index in event.sampled:
            self.metrics.record_token(index, event.end)

    def record_end(self, index: int) -> None:
        """The answer of a request has ended."""
        self.metrics.requests[index].is_done = True
