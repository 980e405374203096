"""Caches with contiguous keys and values, for one request or for several as the rows of a batch."""

from functools import lru_cache

import mlx.core as mx

from ..ops.attention import Mask
from .kv_cache import DenseKvCache

MIN_CAPACITY = 64


class _Buffer:
    """Keys and values in arrays [B, H, capacity, D] that are written in place and grow by doubling.

    Thanks to doubling, appending n tokens copies O(n) in total. MLX writes in place only if nothing else
    holds the array, so callers must not keep arrays that they fetched earlier.
    """

    def __init__(self, batch_size: int, like_key: mx.array, like_value: mx.array) -> None:
        self.keys = mx.zeros((batch_size, like_key.shape[1], 0, like_key.shape[3]), like_key.dtype)
        self.values = mx.zeros((batch_size, like_value.shape[1], 0, like_value.shape[3]), like_value.dtype)

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def check_fits(self, key: mx.array, value: mx.array) -> None:
        for name, new, held in (("key", key, self.keys), ("value", value, self.values)):
            if (new.shape[1], new.shape[3], new.dtype) != (held.shape[1], held.shape[3], held.dtype):
                raise ValueError(
                    f"this cache holds {held.shape[1]} heads of {held.shape[3]} dimensions in {held.dtype}, "
                    f"but the {name} has {new.shape[1]} of {new.shape[3]} in {new.dtype}"
                )

    def reserve(self, capacity: int) -> None:
        """Make room for at least `capacity` tokens per row."""
        if capacity <= self.capacity:
            return
        num_new = max(capacity, 2 * self.capacity, MIN_CAPACITY) - self.capacity
        self.keys = mx.pad(self.keys, [(0, 0), (0, 0), (0, num_new), (0, 0)])
        self.values = mx.pad(self.values, [(0, 0), (0, 0), (0, num_new), (0, 0)])

    def copy_row(self, source: int, target: int) -> None:
        """Copy one row over another without copying the rest of the buffer."""
        # Evaluate the copies first: while a graph still reads the buffer, MLX would write to a full copy.
        moved = [self.keys[source] * 1, self.values[source] * 1]
        mx.eval(moved)
        self.keys[target], self.values[target] = moved


class TinyKvFullCache(DenseKvCache):
    """Keep every token. All rows of the batch have the same length, `offset`.

    The arrays have spare room and at least double when they are full, so appending n tokens copies O(n)
    tokens in total. `update_and_fetch` returns the first `offset` tokens of them, and the caller's mask.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._buffer: _Buffer | None = None

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int, Mask]:
        B, _, L, _ = _check_pair(key, value)
        if self._buffer is None:
            self._buffer = _Buffer(B, key, value)
        buffer = self._buffer
        buffer.check_fits(key, value)
        if buffer.keys.shape[0] != B:
            raise ValueError(f"this cache holds {buffer.keys.shape[0]} rows, got a batch of {B}")

        end = self._offset + L
        buffer.reserve(end)
        buffer.keys[:, :, self._offset : end] = key
        buffer.values[:, :, self._offset : end] = value
        self._offset = end
        return buffer.keys[:, :, :end], buffer.values[:, :, :end], end, mask

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Return the cached keys and values, [B, H, offset, D] each; of length 0 after a rewind to 0.

        Raises:
            ValueError: nothing has been stored since the cache was made or released.
        """
        if self._buffer is None:
            raise ValueError("the cache is empty: store something before you fetch")
        return self._buffer.keys[:, :, : self._offset], self._buffer.values[:, :, : self._offset]

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, 0 to all of them. Their room stays, and the next tokens overwrite them.

        Raises:
            ValueError: `n` is negative or larger than the number of cached tokens.
        """
        if not 0 <= n <= self._offset:
            raise ValueError(f"n must be from 0 to the {self._offset} cached tokens, got {n}")
        self._offset -= n

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def state(self) -> list[mx.array]:
        return [] if self._buffer is None else [self._buffer.keys, self._buffer.values]

    def release(self) -> None:
        self._offset = 0
        self._buffer = None


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
        if max_active_requests < 1:
            raise ValueError(f"max_active_requests must be at least 1, got {max_active_requests}")
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self._slots: list[int] = []  # one per row
        self._lengths: list[int] = []  # one per row
        self._buffer: _Buffer | None = None

    @property
    def active_slots(self) -> list[int]:
        """The slot of each row of the batch."""
        return list(self._slots)

    @property
    def offset(self) -> list[int]:
        """Number of tokens cached for each row of the batch."""
        return list(self._lengths)

    def add_request(self, cache: TinyKvFullCache, id: int) -> None:
        """Copy a prefilled cache of one row into the free slot `id`. The caller still owns `cache`.

        Raises:
            ValueError: slot `id` does not exist or is occupied; `cache` is empty, does not have exactly one
                row, or has other heads, dimensions or types; or its `num_tokens` exceed `max_seq_len`.
                Nothing changes then.
        """
        self._check_slot(id)
        if id in self._slots:
            raise ValueError(f"slot {id} is occupied: remove its request first")
        key, value = cache.fetch()
        B, _, L, _ = key.shape
        if B != 1:
            raise ValueError(f"a slot holds one request, but the cache has {B} rows")
        self._check_length(L)
        if self._buffer is None:
            self._buffer = _Buffer(self.max_active_requests, key, value)
        buffer = self._buffer
        buffer.check_fits(key, value)

        buffer.reserve(L)
        # Old contents of a row are masked, but 0 x NaN is NaN. Overwrite all of them.
        padding = [(0, 0), (0, buffer.capacity - L), (0, 0)]
        row = len(self._slots)
        buffer.keys[row] = mx.pad(key[0], padding)
        buffer.values[row] = mx.pad(value[0], padding)
        self._slots.append(id)
        self._lengths.append(L)

    def remove_request(self, id: int) -> None:
        """Free slot `id`. The last row of the batch moves into its place; copy only that row.

        Raises:
            ValueError: slot `id` does not exist or is already free.
        """
        self._check_slot(id)
        if id not in self._slots or self._buffer is None:
            raise ValueError(f"slot {id} is already free")
        row, last = self._slots.index(id), len(self._slots) - 1
        if row != last:
            self._buffer.copy_row(last, row)
            self._slots[row], self._lengths[row] = self._slots[last], self._lengths[last]
        self._slots.pop()
        self._lengths.pop()

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, list[int], Mask]:
        B, _, L, _ = _check_pair(key, value)
        num_rows = len(self._slots)
        if self._buffer is None or num_rows != B:
            raise ValueError(f"the batch must have one row per occupied slot: got {B} rows for {num_rows}")
        buffer = self._buffer
        buffer.check_fits(key, value)
        longest = max(self._lengths) + L
        self._check_length(longest)

        buffer.reserve(longest)
        rows, positions, mask = _ragged_indices(tuple(self._lengths), L, longest, key.dtype)
        buffer.keys[rows, :, positions] = key.swapaxes(1, 2)
        buffer.values[rows, :, positions] = value.swapaxes(1, 2)
        self._lengths = [length + L for length in self._lengths]
        return (
            buffer.keys[:B, :, :longest],
            buffer.values[:B, :, :longest],
            self.offset,
            mask,
        )

    @property
    def state(self) -> list[mx.array]:
        return [] if self._buffer is None else [self._buffer.keys, self._buffer.values]

    def release(self) -> None:
        self._slots, self._lengths = [], []
        self._buffer = None

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(
                f"slot {slot} does not exist: this cache has slots 0 to {self.max_active_requests - 1}"
            )

    def _check_length(self, length: int) -> None:
        if self.max_seq_len is not None and length > self.max_seq_len:
            raise ValueError(f"a slot holds at most max_seq_len {self.max_seq_len} tokens, got {length}")


def _check_pair(key: mx.array, value: mx.array) -> tuple[int, int, int, int]:
    """Check that key and value belong together, and return the shape [B, H, L, D] of the key."""
    if key.ndim != 4 or key.shape[:3] != value.shape[:3]:
        raise ValueError(f"key and value must both be [B, H, L, D], got {key.shape} and {value.shape}")
    B, H, L, D = key.shape
    return B, H, L, D


@lru_cache(maxsize=1)
def _ragged_indices(
    lengths: tuple[int, ...], L: int, S: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array, mx.array]:
    """Indices and mask for L more tokens per row, made once per step for all layers.

    Returns:
        rows: [B, 1]
        positions: [B, L]
        mask: [B, 1, L, S], additive; each token sees its own row up to itself.
    """
    positions = mx.array(lengths)[:, None] + mx.arange(L)[None, :]
    visible = mx.arange(S) <= positions[:, :, None]  # [B, L, S]
    mask = mx.where(visible, 0.0, -mx.inf).astype(dtype)[:, None]
    return mx.arange(len(lengths))[:, None], positions, mask
