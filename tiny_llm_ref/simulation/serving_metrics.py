"""How long the users of a run waited, in numbers. The caller passes all times, in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..batching.prefill_metrics import RequestTimes, percentile


@dataclass(frozen=True)
class Slo:
    """A service-level objective: the limits that a good request meets.

    Args:
        ttft: limit on its time to first token, in seconds.
        itl: limit on each gap between two tokens, in seconds.

    Raises:
        ValueError: a limit is not positive.
    """

    ttft: float
    itl: float

    def __post_init__(self) -> None:
        for name in ("ttft", "itl"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def is_met_by(self, request: RequestTimes) -> bool:
        """Whether the answer has ended, began in time and never paused for too long."""
        if not request.is_done or request.ttft is None:
            return False
        return request.ttft <= self.ttft and all(gap <= self.itl for gap in request.gaps)


@dataclass(frozen=True)
class ServingMetrics:
    """A run in numbers. Times are in seconds, and None if no request had such a time.

    Attributes:
        num_requests, num_done: number of requests, and of those whose answers ended.
        seconds: from the first arrival to the last token.
        output_tokens_per_s: tokens of all answers / `seconds`.
        goodput: requests that met the target / `seconds`.
        good_share: fraction of all requests that met the target.
        ttft_p50, ttft_p99, queue_p50, queue_p99, itl_p50, itl_p99, longest_itl, tpot_p50: percentiles over
            requests; those of the ITL are over all gaps of all requests.
    """

    num_requests: int
    num_done: int
    seconds: float
    output_tokens_per_s: float | None
    goodput: float | None
    good_share: float
    ttft_p50: float | None
    ttft_p99: float | None
    queue_p50: float | None
    queue_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    longest_itl: float | None
    tpot_p50: float | None

    @classmethod
    def of(cls, requests: Sequence[RequestTimes], target: Slo) -> "ServingMetrics":
        """Compute the numbers of a run.

        Args:
            requests: all requests, at least one.
            target: the limits that a good request meets.

        Raises:
            ValueError: there are no requests.
        """
        if not requests:
            raise ValueError("a run needs at least one request, got none")
        ends = [request.tokens[-1] for request in requests if request.tokens]
        seconds = max(ends) - min(request.arrival for request in requests) if ends else 0.0
        num_tokens = sum(len(request.tokens) for request in requests)
        num_good = sum(target.is_met_by(request) for request in requests)
        ttft, queue_time, tpot = (
            [value for request in requests if (value := getattr(request, name)) is not None]
            for name in ("ttft", "queue_time", "tpot")
        )
        gaps = [gap for request in requests for gap in request.gaps]
        return cls(
            num_requests=len(requests),
            num_done=sum(request.is_done for request in requests),
            seconds=seconds,
            output_tokens_per_s=num_tokens / seconds if seconds else None,
            goodput=num_good / seconds if seconds else None,
            good_share=num_good / len(requests),
            ttft_p50=percentile(ttft, 50),
            ttft_p99=percentile(ttft, 99),
            queue_p50=percentile(queue_time, 50),
            queue_p99=percentile(queue_time, 99),
            itl_p50=percentile(gaps, 50),
            itl_p99=percentile(gaps, 99),
            longest_itl=percentile(gaps, 100),
            tpot_p50=percentile(tpot, 50),
        )
