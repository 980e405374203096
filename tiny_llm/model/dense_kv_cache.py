"""Caches with contiguous keys and values: of one request, or of several in the rows of a batch."""

import mlx.core as mx

from ..ops.attention import Mask
from .kv_cache import DenseKvCache


class TinyKvFullCache(DenseKvCache):
    """Keeps every token; all rows of the batch have the same length, `offset`.

    Its arrays have room to spare and at least double when full, so n appends copy O(n) tokens. What it
    returns is cut to `offset`, with the mask unchanged.
    """

    def __init__(self) -> None:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.__init__ is not written yet")

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int, Mask]:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.update_and_fetch is not written yet")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """All that is cached, keys and values [B, H, offset, D]; after a rewind to 0, arrays of length 0.

        Raises:
            ValueError: the cache never held anything, or was released.
        """
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.fetch is not written yet")

    def rewind(self, n: int) -> None:
        """Forget the last n tokens.

        Raises:
            ValueError: `n` is negative or more than is cached.
        """
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.rewind is not written yet")

    @property
    def offset(self) -> int:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.offset is not written yet")

    @property
    def state(self) -> list[mx.array]:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.state is not written yet")

    def release(self) -> None:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.release is not written yet")


class BatchingKvCache(DenseKvCache):
    """Slots for requests of different lengths that decode together.

    The rows of a batch are the occupied slots in the order of `active_slots`; a free slot is not computed
    at all. Rows shorter than the longest are masked to their own length. In memory the occupied rows
    always come first, so that attention reads them where they lie: a request that leaves makes room for
    the last row.

    Args:
        max_active_requests: number of slots.
        max_seq_len: most tokens a slot may hold; without it the cache grows as needed.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int | None = None) -> None:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.__init__ is not written yet")

    @property
    def active_slots(self) -> list[int]:
        """The slot of each row of the batch."""
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.active_slots is not written yet")

    @property
    def offset(self) -> list[int]:
        """Number of tokens cached for each row of the batch."""
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.offset is not written yet")

    def add_request(self, cache: TinyKvFullCache, id: int) -> None:
        """Copy a prefilled cache of one row into the free slot `id`; the caller still owns `cache`.

        Raises:
            ValueError: there is no slot `id`, it is occupied, or the cache does not fit; if it is too long,
                shows its `num_tokens` and `max_seq_len`.
        """
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.add_request is not written yet")

    def remove_request(self, id: int) -> None:
        """Free the slot `id`; the last row of the batch moves into its place, a copy of that row alone.

        Raises:
            ValueError: there is no slot `id`, or it is free already.
        """
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.remove_request is not written yet")

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, list[int], Mask]:
        raise NotImplementedError("week 2 day 6 task 2: BatchingKvCache.update_and_fetch is not written yet")

    @property
    def state(self) -> list[mx.array]:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.state is not written yet")

    def release(self) -> None:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.release is not written yet")
