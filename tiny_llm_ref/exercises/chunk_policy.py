"""Choose the size of the next chunk, and the request it belongs to."""

from collections import deque
from typing import Literal

QWEN3_0_6B_KV_BYTES_PER_TOKEN = 28 * 8 * 128 * 2 * 2
"""Layers x KV heads x head dimension x (key, value) x 2 bytes."""

PriorityClass = Literal["interactive", "batch"]


def select_optimal_chunk_size(
    sequence_length: int,
    available_memory: int,
    active_decode_requests: int,
    batch_size: int = 5,
    bytes_per_token: int = QWEN3_0_6B_KV_BYTES_PER_TOKEN,
) -> int:
    """Choose a chunk size by rule of thumb: 64 if most slots decode, 256 for a long prompt, 128 otherwise.

    "Most" means more than four out of five, and "long" means more than 2048 tokens. The first rule wins if
    both apply. A chunk is never longer than the rest of the prompt, or than the memory has room for.

    Args:
        sequence_length: prompt tokens still to prefill.
        available_memory: bytes free for keys and values.
        active_decode_requests: requests that wait for each chunk to end.
        batch_size: number of slots.
        bytes_per_token: bytes of keys and values per token, over all layers.

    Raises:
        ValueError: sequence_length, batch_size or bytes_per_token is below 1; active_decode_requests is
            negative; or available_memory is less than bytes_per_token.
    """
    if sequence_length < 1 or active_decode_requests < 0 or batch_size < 1 or bytes_per_token < 1:
        raise ValueError(
            "sequence_length, batch_size and bytes_per_token must be at least 1, and active_decode_requests "
            f"at least 0, got {sequence_length}, {batch_size}, {bytes_per_token} and {active_decode_requests}"
        )
    tokens_in_memory = available_memory // bytes_per_token
    if tokens_in_memory < 1:
        raise ValueError(
            f"available_memory of {available_memory} bytes does not hold one token of {bytes_per_token}: "
            "free memory first"
        )
    if active_decode_requests * 5 > batch_size * 4:
        chunk_size = 64
    elif sequence_length > 2048:
        chunk_size = 256
    else:
        chunk_size = 128
    return min(chunk_size, sequence_length, tokens_in_memory)


class AdaptiveChunker:
    """Choose each chunk so that it delays decoding requests by about the target time.

    Measured chunk times tell how many tokens fit in the target. Decodes in the same step need time as well,
    so a full batch halves this number. A partly full batch reduces it in proportion: if one of four slots
    decodes, by an eighth. More decodes than slots count as a full batch.

    Args:
        decode_latency_target: seconds by which a chunk may delay the next token.
        min_chunk_size, max_chunk_size: limits of the chosen size.
        initial_chunk_size: the number of tokens that fit, until a chunk has been measured. Decodes reduce it
            in the same way.
        window: number of most recent chunks to average over.

    Raises:
        ValueError: 1 <= min_chunk_size <= initial_chunk_size <= max_chunk_size does not hold; the target is
            not positive (nan is not); or the window is below 1.
    """

    def __init__(
        self,
        decode_latency_target: float = 0.05,
        min_chunk_size: int = 16,
        max_chunk_size: int = 512,
        initial_chunk_size: int = 128,
        window: int = 8,
    ) -> None:
        if not 1 <= min_chunk_size <= initial_chunk_size <= max_chunk_size:
            raise ValueError(
                "chunk sizes must satisfy 1 <= min_chunk_size <= initial_chunk_size <= max_chunk_size, "
                f"got {min_chunk_size}, {initial_chunk_size} and {max_chunk_size}"
            )
        if not decode_latency_target > 0 or window < 1:
            raise ValueError(
                "decode_latency_target must be positive and window at least 1, "
                f"got {decode_latency_target} and {window}"
            )
        self.decode_latency_target = decode_latency_target
        self.min_chunk_size = min_chunk_size
        self.max_chunk_size = max_chunk_size
        self.initial_chunk_size = initial_chunk_size
        self._recent: deque[tuple[int, float]] = deque(maxlen=window)

    def record(self, chunk_size: int, seconds: float) -> None:
        """Record how many seconds a chunk of chunk_size tokens took.

        Raises:
            ValueError: the chunk has no token, or the time is not positive (nan is not). Nothing is recorded
                then.
        """
        if chunk_size < 1 or not seconds > 0:
            raise ValueError(
                f"a chunk needs at least 1 token and a positive time, got {chunk_size} in {seconds} s"
            )
        self._recent.append((chunk_size, seconds))

    def chunk_size(self, num_active_decodes: int, batch_size: int) -> int:
        """Number of tokens in the next chunk, rounded down and kept within the limits.

        Args:
            num_active_decodes: requests that decode now. If there are none, nothing is delayed, so the
                chunk is as large as allowed. Before the first measurement it is the initial size instead.
            batch_size: number of slots.

        Raises:
            ValueError: `batch_size` is below 1, or `num_active_decodes` is negative.
        """
        if batch_size < 1 or num_active_decodes < 0:
            raise ValueError(
                "num_active_decodes must be at least 0 and batch_size at least 1, "
                f"got {num_active_decodes} and {batch_size}"
            )
        if not self._recent:
            affordable: float = self.initial_chunk_size
        elif num_active_decodes == 0:
            affordable = self.max_chunk_size
        else:
            tokens, seconds = map(sum, zip(*self._recent, strict=True))
            affordable = self.decode_latency_target * tokens / seconds
        pressure = min(num_active_decodes / batch_size, 1.0)
        return max(self.min_chunk_size, min(self.max_chunk_size, int(affordable * (1 - pressure / 2))))


class PriorityScheduler:
    """Serve interactive requests before batch ones, and each class in order of arrival. None starves.

    While batch requests wait, at most `max_passed_over` interactive requests in a row are taken before one of
    them. So a batch request with p others ahead of it is taken within (p + 1) x (max_passed_over + 1) turns,
    whatever else arrives. An interactive request that is taken while no batch request waits does not count.

    Raises:
        ValueError: `max_passed_over` is negative.
    """

    def __init__(self, max_passed_over: int = 4) -> None:
        if max_passed_over < 0:
            raise ValueError(f"max_passed_over must not be negative, got {max_passed_over}")
        self.max_passed_over = max_passed_over
        self._queues: dict[PriorityClass, deque[int]] = {"interactive": deque(), "batch": deque()}
        self._num_passed_over = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, request_id: int, priority: PriorityClass = "interactive") -> None:
        """Add a request to the end of its class's queue.

        Raises:
            ValueError: `priority` is not one of the two classes. Nothing is queued then.
        """
        if priority not in self._queues:
            raise ValueError(f"priority must be 'interactive' or 'batch', got {priority!r}")
        self._queues[priority].append(request_id)

    def next(self) -> int | None:
        """Take the request whose turn it is; None if no request is waiting."""
        interactive, batch = self._queues["interactive"], self._queues["batch"]
        if batch and (not interactive or self._num_passed_over >= self.max_passed_over):
            self._num_passed_over = 0
            return batch.popleft()
        if not interactive:
            return None
        self._num_passed_over += bool(batch)
        return interactive.popleft()
