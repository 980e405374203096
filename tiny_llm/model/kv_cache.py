"""The interface of a key-value cache. You write the caches themselves on days 2.1, 2.6, 3.2 and 3.3."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import mlx.core as mx

from ..ops.attention import Attention, Mask, check_mask


class TinyKvCache(ABC):
    """One layer's cache, as the model sees it. A model uses a list of them, one per layer."""

    @abstractmethod
    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Append the keys and values of L new tokens per row, and attend to all that is cached.

        Args:
            query: [B, H_q, L, D]
            key, value: [B, H, L, D]
            attention: the model's attention function; a cache may attend in its own way.
            mask: which tokens a query may see, unless the cache makes its own mask.

        Returns:
            [B, H_q, L, D]

        Raises:
            ValueError: the shapes or types do not fit the cache or each other, or the `mask` is a
                string other than "causal"; nothing is stored.
        """

    @property
    @abstractmethod
    def offset(self) -> int | list[int]:
        """Position of the next token: a number for all rows, or a list with one per row.

        The model refuses to be called with any other offset.
        """

    @property
    @abstractmethod
    def state(self) -> list[mx.array]:
        """The arrays that hold the cache, an empty list when nothing is stored.

        Evaluate them to keep no lazy graph alive.
        """

    @abstractmethod
    def release(self) -> None:
        """Free the memory; the cache is then empty and can be used again."""


class DenseKvCache(TinyKvCache):
    """A cache that returns everything it holds as two arrays, which any attention function can read."""

    @abstractmethod
    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | list[int], Mask]:
        """Append the keys and values of L new tokens per row and return all that is cached.

        Args:
            key, value: [B, H, L, D]
            mask: the caller's mask; a cache whose rows differ in length replaces it.

        Returns:
            keys [B, H, S, D], values [B, H, S, D], the new `offset`, and the mask to attend with.

        Raises:
            ValueError: the shapes or types do not fit the cache or each other, or a row would have more
                tokens, `num_tokens`, than `max_seq_len`; nothing is stored.
        """

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Attend to what `update_and_fetch` returns, with the mask it returns."""
        check_mask(mask)
        key, value, _, mask = self.update_and_fetch(key, value, mask)
        return attention(query, key, value, mask=mask)


def check_offset(offset: int | list[int], caches: Sequence[TinyKvCache]) -> None:
    """Raise ValueError unless the `offset` is where every cache ends, which is `cache.offset`."""
    for layer, cache in enumerate(caches):
        if not _is_same_offset(offset, cache.offset):
            raise ValueError(
                f"offset {offset} is not where the cache of layer {layer} ends, which is {cache.offset}: "
                "call the model with the number of tokens that are cached"
            )


def _is_same_offset(a: int | list[int], b: int | list[int]) -> bool:
    """Whether two offsets are equal in every row; a single number holds for all rows."""
    if isinstance(a, list) and not isinstance(b, list):
        return all(each == b for each in a)
    if isinstance(b, list) and not isinstance(a, list):
        return all(each == a for each in b)
    return a == b
