"""Key-value caches: what attention needs of the tokens before, so that they are not computed again."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import mlx.core as mx

from ..ops.attention import Attention, Mask, check_mask


class TinyKvCache(ABC):
    """One layer's cache, as the model sees it. The model holds a list of them, one a layer."""

    @abstractmethod
    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | list[int], Mask]:
        """Append the keys and values of L new tokens a row and return all that is cached.

        Args:
            key: [B, H, L, D]
            value: [B, H, L, D]
            mask_length: number of queries that a mask made here is for; L unless given.
            mask: what the caller would mask with; a cache whose rows differ in length replaces it.

        Returns:
            keys [B, H, S, D], values [B, H, S, D], the number of tokens cached (one for all rows, or a
            list with one a row), and the mask to attend with.

        Raises:
            ValueError: the shapes or types do not fit the cache or each other; nothing is stored.
        """

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Append the keys and values of L new tokens a row, and attend to all that is cached.

        Args:
            query: [B, H_q, L, D]
            key, value: [B, H, L, D]
            attention: attends to the keys and values that `update_and_fetch` returns, with its mask.
            mask: as for `update_and_fetch`.

        Returns:
            [B, H_q, L, D]

        Raises:
            ValueError: as for `update_and_fetch`, or the mask is another string than "causal".
        """
        check_mask(mask)
        key, value, _, mask = self.update_and_fetch(key, value, mask_length=query.shape[2], mask=mask)
        return attention(query, key, value, mask=mask)

    @property
    def next_position(self) -> int | list[int] | None:
        """Position of the next token, a number for all rows or a list with one per row; None if unknown.

        The model refuses any other offset.
        """
        return None

    @property
    @abstractmethod
    def state(self) -> list[mx.array]:
        """The arrays that hold the cache, an empty list when nothing is stored.

        Evaluate them and no lazy graph stays alive.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the memory back; the cache is empty and can be used again."""


def check_offset(offset: int | list[int], caches: Sequence[TinyKvCache]) -> None:
    """ValueError unless the offset is where every cache ends: new tokens follow those that are cached."""
    for layer, cache in enumerate(caches):
        end = cache.next_position
        if end is not None and not _is_same_position(offset, end):
            raise ValueError(
                f"offset {offset} is not where the cache of layer {layer} ends, which is {end}: "
                "call the model with the number of tokens that are cached"
            )


def _is_same_position(a: int | list[int], b: int | list[int]) -> bool:
    """Whether two are the same in every row; a single number stands for all rows."""
    if isinstance(a, list) and not isinstance(b, list):
        return all(each == b for each in a)
    if isinstance(b, list) and not isinstance(a, list):
        return all(each == a for each in b)
    return a == b


class TinyKvFullCache(TinyKvCache):
    """Keeps every token; all rows of the batch have the same length, `offset`.

    Its arrays have room to spare and at least double when full, so that n appends copy O(n) tokens; what is
    returned is cut to `offset`. Uses no `mask_length`; returns `mask` as it came.
    """

    def __init__(self) -> None:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.__init__ is not written yet")

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int, Mask]:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.update_and_fetch is not written yet")

    def fetch(self) -> tuple[mx.array, mx.array]:
        """All that is cached, keys and values [B, H, offset, D]; after a rewind to 0, arrays of length 0.

        Raises:
            ValueError: with the word empty, for a cache that never held anything or was released.
        """
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.fetch is not written yet")

    def rewind(self, n: int) -> None:
        """Forget the last n tokens.

        Raises:
            ValueError: n is negative or more than is cached.
        """
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.rewind is not written yet")

    @property
    def next_position(self) -> int:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.next_position is not written yet")

    @property
    def state(self) -> list[mx.array]:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.state is not written yet")

    def release(self) -> None:
        raise NotImplementedError("week 2 day 1 task 1: TinyKvFullCache.release is not written yet")


class BatchingKvCache(TinyKvCache):
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
    def lengths(self) -> list[int]:
        """Number of tokens cached for each row of the batch."""
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.lengths is not written yet")

    def add_request(self, cache: TinyKvFullCache, id: int) -> None:
        """Copy a prefilled cache of one row into the free slot `id`; the caller still owns `cache`.

        Raises:
            ValueError: there is no such slot, it is occupied, or the cache does not fit.
        """
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.add_request is not written yet")

    def remove_request(self, id: int) -> None:
        """Free the slot `id`; the last row of the batch moves into its place, a copy of that row alone.

        Raises:
            ValueError: there is no such slot, or it is free already.
        """
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.remove_request is not written yet")

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, list[int], Mask]:
        raise NotImplementedError("week 2 day 6 task 2: BatchingKvCache.update_and_fetch is not written yet")

    @property
    def next_position(self) -> list[int]:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.next_position is not written yet")

    @property
    def state(self) -> list[mx.array]:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.state is not written yet")

    def release(self) -> None:
        raise NotImplementedError("week 2 day 6 task 1: BatchingKvCache.release is not written yet")
