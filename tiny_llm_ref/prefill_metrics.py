"""What a run with chunked prefill cost, and what its users felt."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


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
    _arrivals: dict[int, float] = field(default_factory=dict)
    _tokens_at: dict[int, list[float]] = field(default_factory=dict)

    def record_arrival(self, request_id: int, now: float) -> None:
        """A request was submitted."""
        self._arrivals[request_id] = now
        self._tokens_at[request_id] = []

    def record_chunk(self, num_tokens: int, seconds: float) -> None:
        """A chunk was computed; its time enters an exponential moving average, which starts at the first."""
        self.num_chunks += 1
        self.num_prefill_tokens += num_tokens
        before = seconds if self.average_chunk_seconds is None else self.average_chunk_seconds
        self.average_chunk_seconds = before + self.smoothing * (seconds - before)

    def record_token(self, request_id: int, now: float) -> None:
        """A token reached its user: the first comes from the prefill, the others from decodes.

        Raises:
            ValueError: the arrival of this request was not recorded; nothing is counted.
        """
        if request_id not in self._arrivals:
            raise ValueError(f"request {request_id} has not arrived: call record_arrival first")
        times = self._tokens_at[request_id]
        self.num_decode_tokens += len(times) > 0
        times.append(now)

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed for each token decoded; None before the first decode."""
        return self.num_prefill_tokens / self.num_decode_tokens if self.num_decode_tokens else None

    def ttft(self, request_id: int) -> float | None:
        """Time to first token: from arrival, waiting included. None without one, or of an unknown request."""
        times = self._tokens_at.get(request_id)
        return times[0] - self._arrivals[request_id] if times else None

    def gaps(self, request_id: int | None = None) -> list[float]:
        """Every gap between neighbouring tokens (ITL), of one request or of all; [] of an unknown request."""
        chosen = self._tokens_at.values() if request_id is None else [self._tokens_at.get(request_id, [])]
        return [later - earlier for times in chosen for earlier, later in pairwise(times)]

    def gap_percentile(self, percent: float, request_id: int | None = None) -> float | None:
        """The gap that so many percent of all gaps do not exceed, interpolated; None without gaps.

        Raises:
            ValueError: percent is not between 0 and 100, with or without gaps.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"percent must be between 0 and 100, got {percent}")
        gaps = self.gaps(request_id)
        return float(np.percentile(gaps, percent)) if gaps else None
