"""What a run cost, and what its users felt."""

from collections.abc import Iterable
from dataclasses import dataclass, field


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The value that so many percent do not exceed, interpolated; None without values.

    Raises:
        ValueError: percent is not between 0 and 100, with or without values.
    """
    raise NotImplementedError("week 2 day 7 task 5: percentile is not written yet")


@dataclass
class RequestTimes:
    """When things happened to one request, in seconds from one start for all requests of a run.

    Attributes:
        arrival: when its user sent it.
        scheduled: when the first step began that computed something of it; None before.
        tokens: when each token of its answer was there.
        is_done: whether the answer has ended.
    """

    arrival: float
    scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)
    is_done: bool = False

    def record_scheduled(self, now: float) -> None:
        """A step begins that computes something of it; only the first one counts."""
        if self.scheduled is None:
            self.scheduled = now

    @property
    def queue_time(self) -> float | None:
        """From its arrival to its first step; None before."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, from its arrival, waiting included; None before."""
        raise NotImplementedError("week 2 day 7 task 5: RequestTimes.ttft is not written yet")

    @property
    def gaps(self) -> list[float]:
        """Between neighbouring tokens (ITL)."""
        raise NotImplementedError("week 2 day 7 task 5: RequestTimes.gaps is not written yet")

    @property
    def tpot(self) -> float | None:
        """Time per output token: the mean of its gaps; None with fewer than two tokens."""
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


@dataclass
class ChunkedPrefillMetrics:
    """What a run cost and what its users felt. It has no clock: times in seconds come from the caller.

    `smoothing` is the weight of the newest chunk in the average chunk time, from 0 to 1.
    """

    smoothing: float = 0.2
    num_chunks: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    average_chunk_seconds: float | None = None
    requests: dict[int, RequestTimes] = field(default_factory=dict)

    def record_arrival(self, request_id: int, now: float) -> None:
        """A request was submitted."""
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_arrival is not written yet"
        )

    def record_chunk(self, num_tokens: int, seconds: float) -> None:
        """A chunk was computed; its time enters an exponential moving average, which starts at the first."""
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_chunk is not written yet"
        )

    def record_token(self, request_id: int, now: float) -> None:
        """A token reached its user: the first comes from the prefill, the others from decodes.

        Raises:
            ValueError: the arrival of `request_id` was not recorded; nothing is counted.
        """
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_token is not written yet"
        )

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed for each token decoded; None before the first decode."""
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.prefill_to_decode_ratio is not written yet"
        )

    def ttft(self, request_id: int) -> float | None:
        """Time to first token: from arrival, waiting included. None without one, or of an unknown request."""
        raise NotImplementedError("week 2 day 7 task 5: ChunkedPrefillMetrics.ttft is not written yet")

    def gaps(self, request_id: int | None = None) -> list[float]:
        """Every gap between neighbouring tokens (ITL), of one request or of all; [] of an unknown request."""
        raise NotImplementedError("week 2 day 7 task 5: ChunkedPrefillMetrics.gaps is not written yet")

    def gap_percentile(self, percent: float, request_id: int | None = None) -> float | None:
        """The gap that so many percent of all gaps do not exceed, interpolated; None without gaps.

        Raises:
            ValueError: percent is not between 0 and 100, with or without gaps.
        """
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.gap_percentile is not written yet"
        )
