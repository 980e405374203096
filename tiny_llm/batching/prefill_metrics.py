"""Measure what a run cost, and how long its users waited."""

from collections.abc import Iterable
from dataclasses import dataclass, field


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The value that `percent` percent of all values do not exceed, interpolated; None without values.

    Raises:
        ValueError: percent is not between 0 and 100, even if there are no values.
    """
    raise NotImplementedError("week 2 day 7 task 5: percentile is not written yet")


@dataclass
class RequestTimes:
    """Times of one request's events, in seconds on a clock that all requests of a run share.

    Attributes:
        arrival: when the user sent it.
        scheduled: when the first step that computes any of its tokens began; None before that.
        tokens: when each token of its answer was ready.
        is_done: whether the answer has ended.
    """

    arrival: float
    scheduled: float | None = None
    tokens: list[float] = field(default_factory=list)
    is_done: bool = False

    def record_scheduled(self, now: float) -> None:
        """Record that a step with some of its tokens begins. Only the first such step counts."""
        if self.scheduled is None:
            self.scheduled = now

    @property
    def queue_time(self) -> float | None:
        """Seconds from its arrival to its first step; None before that step."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token: seconds from its arrival, including waiting; None before that token."""
        raise NotImplementedError("week 2 day 7 task 5: RequestTimes.ttft is not written yet")

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens (inter-token latency, ITL)."""
        raise NotImplementedError("week 2 day 7 task 5: RequestTimes.gaps is not written yet")

    @property
    def tpot(self) -> float | None:
        """Time per output token: the mean of its gaps; None if it has fewer than two tokens."""
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


@dataclass
class ChunkedPrefillMetrics:
    """Measures of a run. It reads no clock: the caller passes all times, in seconds.

    `smoothing` is the weight of the newest chunk in the average chunk time, from 0 to 1.
    """

    smoothing: float = 0.2
    num_chunks: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    average_chunk_seconds: float | None = None
    requests: dict[int, RequestTimes] = field(default_factory=dict)

    def record_arrival(self, request_id: int, now: float) -> None:
        """Record that a request was submitted."""
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_arrival is not written yet"
        )

    def record_chunk(self, num_tokens: int, seconds: float) -> None:
        """Record a computed chunk. The average chunk time is an exponential moving average.

        The average starts at the time of the first chunk. Each later chunk moves it by `smoothing` times the
        difference.
        """
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_chunk is not written yet"
        )

    def record_token(self, request_id: int, now: float) -> None:
        """Record that a token reached its user. The first comes from the prefill, all others from decodes.

        Raises:
            ValueError: the arrival of `request_id` has not been recorded. Nothing is counted then.
        """
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.record_token is not written yet"
        )

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed per decoded token; None before the first decode."""
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.prefill_to_decode_ratio is not written yet"
        )

    def ttft(self, request_id: int) -> float | None:
        """Time to first token, including waiting. None before that token, and for an unknown request."""
        raise NotImplementedError("week 2 day 7 task 5: ChunkedPrefillMetrics.ttft is not written yet")

    def gaps(self, request_id: int | None = None) -> list[float]:
        """All gaps between consecutive tokens (ITL), of one request or of all; [] for an unknown request."""
        raise NotImplementedError("week 2 day 7 task 5: ChunkedPrefillMetrics.gaps is not written yet")

    def gap_percentile(self, percent: float, request_id: int | None = None) -> float | None:
        """The gap that `percent` percent of all gaps do not exceed, interpolated; None without gaps.

        Raises:
            ValueError: percent is not between 0 and 100, even if there are no gaps.
        """
        raise NotImplementedError(
            "week 2 day 7 task 5: ChunkedPrefillMetrics.gap_percentile is not written yet"
        )
