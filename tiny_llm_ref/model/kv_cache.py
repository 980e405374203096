"""The interface of a key-value cache. You write the caches themselves on days 2.1, 2.6, 3.2 and 3.3."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import mlx.core as mx

from ..ops.attention import Attention, Mask, check_mask


class TinyKvCache(ABC):
    """One layer's cache, as the model sees it. A model takes a list of caches, one per layer."""

    @abstractmethod
    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Append the keys and values of L new tokens per row, then attend to everything cached.

        Args:
            query: [B, H_q, L, D]
            key, value: [B, H, L, D]
            attention: the model's attention function; a cache may attend in its own way.
            mask: which tokens a query may see, unless the cache makes its own mask.

        Returns:
            [B, H_q, L, D]

        Raises:
            ValueError: the shapes or types do not fit the cache or each other, or `mask` is a string
                other than "causal". Nothing is stored then.
        """

    @property
    @abstractmethod
    def offset(self) -> int | list[int]:
        """Position of the next token: a number for all rows, or a list with one per row.

        The model raises ValueError if it is called with any other offset.
        """

    @property
    @abstractmethod
    def state(self) -> list[mx.array]:
        """The arrays that hold the cache; an empty list if nothing is stored.

        Evaluate them after each step, so that no lazy graph stays alive.
        """

    @abstractmethod
    def release(self) -> None:
        """Free the memory. The cache is empty afterwards and can be used again."""


class DenseKvCache(TinyKvCache):
    """A cache that returns everything it holds as two arrays, so any attention function can read it."""

    @abstractmethod
    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | list[int], Mask]:
        """Append the keys and values of L new tokens per row and return everything cached.

        Args:
            key, value: [B, H, L, D]
            mask: the caller's mask; a cache whose rows differ in length replaces it.

        Returns:
            keys [B, H, S, D], values [B, H, S, D], the new `offset`, and the mask to attend with.

        Raises:
            ValueError: the shapes or types do not fit the cache or each other, or the longest row would
                have `num_tokens`, more than `max_seq_len`. Nothing is stored then.
        """

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Attend to what `update_and_fetch` returns, with the mask it returns."""
        check_mask(mask)
        key, value, _, mask = self.update_and_fetch(key, value, mask)
        return attention(query, key, value, mask=mask)


def check_offset(offset: int | list[int], caches: Sequence[TinyKvCache]) -> None:
    """Raise ValueError unless `offset` equals `cache.offset`, the end of what is cached, in every layer."""
    for layer, cache in enumerate(caches):
        if not _is_same_offset(offset, cache.offset):
            raise ValueError(
                f"offset is {offset}, but the cache of layer {layer} ends at {cache.offset}: "
                "pass the number of cached tokens as the offset"
            )


def _is_same_offset(a: int | list[int], b: int | list[int]) -> bool:
    """Whether two offsets are equal in every row; a single number holds for all rows."""
    if isinstance(a, list) and not isinstance(b, list):
        return all(each == b for each in a)
    if isinstance(b, list) and not isinstance(a, list):
        return all(each == a for each in b)
    return a == b
