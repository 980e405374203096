"""How large the next chunk is, and whose it is."""

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
    """A chunk size by rule of thumb: 64 when most slots decode, 256 for a long prompt, else 128.

    Most means more than four of five, long means over 2048 tokens. A chunk is never longer than the
    prompt, nor than the memory has room for.

    Args:
        sequence_length: tokens of the prompt still to prefill.
        available_memory: bytes free for keys and values.
        active_decode_requests: requests that wait for each chunk to end.
        batch_size: number of slots.
        bytes_per_token: keys and values of one token, over all layers.

    Raises:
        ValueError: sequence_length, batch_size or bytes_per_token is below 1, active_decode_requests is
            negative, or the memory does not hold one token.
    """
    if sequence_length < 1 or active_decode_requests < 0 or batch_size < 1 or bytes_per_token < 1:
        raise ValueError(
            "sequence_length, batch_size and bytes_per_token must be positive, decodes not negative"
        )
    tokens_in_memory = available_memory // bytes_per_token
    if tokens_in_memory < 1:
        raise ValueError(
            f"{available_memory} bytes do not hold one token of {bytes_per_token}: free memory first"
        )
    if active_decode_requests * 5 > batch_size * 4:
        chunk_size = 64
    elif sequence_length > 2048:
        chunk_size = 256
    else:
        chunk_size = 128
    return min(chunk_size, sequence_length, tokens_in_memory)


class AdaptiveChunker:
    """Chooses each chunk so that those who decode wait about as long as they were promised.

    Chunk times are measured; a chunk then takes as many tokens as fit in the target. Decodes that run
    beside it need time in the same step: a full batch halves the chunk, a part of it takes off in
    proportion (one of four: an eighth), and more decodes than slots count as full.

    Args:
        decode_latency_target: seconds a chunk may delay the next token.
        min_chunk_size, max_chunk_size: bounds of the answer.
        initial_chunk_size: stands for what fits before anything was measured; a full batch halves it too.
        window: number of chunks that the measurement looks back.

    Raises:
        ValueError: not 1 <= min_chunk_size <= initial_chunk_size <= max_chunk_size, or the target is not
            positive (nan is not), or the window is below 1.
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
                "chunk sizes must satisfy 1 <= min_chunk_size <= initial_chunk_size <= max_chunk_size"
            )
        if not decode_latency_target > 0 or window < 1:
            raise ValueError("decode_latency_target must be positive and window at least 1")
        self.decode_latency_target = decode_latency_target
        self.min_chunk_size = min_chunk_size
        self.max_chunk_size = max_chunk_size
        self.initial_chunk_size = initial_chunk_size
        self._recent: deque[tuple[int, float]] = deque(maxlen=window)

    def record(self, chunk_size: int, seconds: float) -> None:
        """Note how long a chunk of so many tokens took.

        Raises:
            ValueError: the chunk has no token, or took no positive time (nan is none); it is not noted.
        """
        if chunk_size < 1 or not seconds > 0:
            raise ValueError(
                f"a chunk has at least 1 token and a positive time, got {chunk_size} in {seconds} s"
            )
        self._recent.append((chunk_size, seconds))

    def chunk_size(self, num_active_decodes: int, batch_size: int) -> int:
        """Tokens of the next chunk, rounded down and within the bounds.

        Args:
            num_active_decodes: requests that decode now. With none nobody waits, so a measured chunker
                answers the largest; one that measured nothing yet starts from its initial size.
            batch_size: number of slots.

        Raises:
            ValueError: `batch_size` is not positive, or `num_active_decodes` is negative.
        """
        if batch_size < 1 or num_active_decodes < 0:
            raise ValueError(
                f"{num_active_decodes} decodes in {batch_size} slots: neither may be negative, nor slots 0"
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
    """Interactive requests before batch ones, first come first served within a class, and none starves.

    A batch request that waits is passed over at most `max_passed_over` times in a row. So one with p batch
    requests before it is taken within (p + 1) x (max_passed_over + 1) turns, whatever else arrives.

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
        """Queue a request at the end of its class.

        Raises:
            ValueError: there is no such class as `priority`; nothing is queued.
        """
        if priority not in self._queues:
            raise ValueError(f"priority must be 'interactive' or 'batch', got {priority!r}")
        self._queues[priority].append(request_id)

    def next(self) -> int | None:
        """Take the request whose turn it is; None when nobody waits."""
        interactive, batch = self._queues["interactive"], self._queues["batch"]
        if batch and (not interactive or self._num_passed_over >= self.max_passed_over):
            self._num_passed_over = 0
            return batch.popleft()
        if not interactive:
            return None
        self._num_passed_over += bool(batch)
        return interactive.popleft()
