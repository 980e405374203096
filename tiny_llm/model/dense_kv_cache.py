"""Caches with contiguous keys and values, for one request or for several as the rows of a batch."""

import mlx.core as mx

from ..ops.attention import Mask
from .kv_cache import DenseKvCache


class TinyKvFullCache(DenseKvCache):
    """Keep every token. All rows of the batch have the same length, `offset`.

    The arrays have spare room and at least double when they are full, so appending n tokens copies O(n)
    tokens in total. `update_and_fetch` returns the first `offset` tokens of them, and the caller's mask.
    """

    def __init__(self) -> None:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.__init__ is not written yet")

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int, Mask]:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.update_and_fetch is not written yet")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Return the cached keys and values, [B, H, offset, D] each; of length 0 after a rewind to 0.

        Raises:
            ValueError: nothing has been stored since the cache was made or released.
        """
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.fetch is not written yet")

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, 0 to all of them. Their room stays, and the next tokens overwrite them.

        Raises:
            ValueError: `n` is negative or larger than the number of cached tokens.
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

    The rows of a batch are the occupied slots, in the order of `active_slots`. Free slots are not computed.
    `update_and_fetch` returns an additive mask that limits each row to its own tokens.

    In memory, occupied rows always come first, so attention can read them in place. When a request leaves,
    the last row moves into its place.

    Args:
        max_active_requests: number of slots.
        max_seq_len: largest number of tokens in a slot; by default, the cache grows as needed.

    Raises:
        ValueError: `max_active_requests` is below 1.
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
        """Copy a prefilled cache of one row into the free slot `id`. The caller still owns `cache`.

        Raises:
            ValueError: slot `id` does not exist or is occupied; `cache` is empty, does not have exactly one
                row, or has other heads, dimensions or types; or its `num_tokens` exceed `max_seq_len`.
                Nothing changes then.
        """
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.add_request is not written yet")

    def remove_request(self, id: int) -> None:
        """Free slot `id`. The last row of the batch moves into its place; copy only that row.

        Raises:
            ValueError: slot `id` does not exist or is already free.
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
