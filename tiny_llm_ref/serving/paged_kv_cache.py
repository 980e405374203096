"""Keys and values of all sequences in blocks of a pool that is made once."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..kernels.given.store_rows import store_rows
from ..model.kv_cache import TinyKvCache
from ..ops.attention import Attention, Mask, check_mask

Ints = npt.NDArray[np.int32]


def slot_mapping(block_ids: Items[int], block_size: int, start: int, num_tokens: int) -> Ints:
    """The slot of each of the tokens from `start` on: [num_tokens].

    A pool has block_size slots for each block, block after block.

    Raises:
        ValueError: the start or the number is negative, or the blocks, `len(block_ids)`, have no slot for
            tokens `start` to `end`.
    """
    end, room = start + num_tokens, len(block_ids) * block_size
    if start < 0 or num_tokens < 0 or end > room:
        raise ValueError(
            f"tokens {start} to {end} do not lie in {len(block_ids)} blocks of {block_size}, which have "
            f"{room} slots: allocate blocks before the model runs"
        )
    positions = np.arange(start, end, dtype=np.int32)
    blocks = np.array(block_ids, dtype=np.int32)
    return blocks[positions // block_size] * block_size + positions % block_size


class PagedKvPool:
    """Slots for the keys and values of tokens, in every layer; slot s of block b is b x block_size + s.

    One block more than are given out takes what nobody will read: the sink. The arrays of a layer are made
    when it is first written to, and are then as large as they will ever be.

    Args:
        num_layers: of the model.
        num_blocks, block_size: as for the block manager.

    Raises:
        ValueError: one of `num_layers`, `num_blocks` and `block_size` is below 1.
    """

    def __init__(self, num_layers: int, num_blocks: int, block_size: int) -> None:
        if min(num_layers, num_blocks, block_size) < 1:
            raise ValueError(
                "a pool has a layer and a block of a token at least, got "
                f"{num_layers} layers of {num_blocks} blocks of {block_size} tokens"
            )
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._keys: list[mx.array | None] = [None] * num_layers
        self._values: list[mx.array | None] = [None] * num_layers

    @property
    def sink(self) -> int:
        """The slot for what is not to be kept."""
        return self.num_blocks * self.block_size

    @property
    def state(self) -> list[mx.array]:
        """The arrays of the layers that were written to."""
        return [x for x in (*self._keys, *self._values) if x is not None]

    def check_blocks(self, block_ids: Items[int]) -> None:
        """ValueError for a `block_id` outside the pool: there are no slots, or those of the null block."""
        for id in block_ids:
            if not 0 <= id < self.num_blocks:
                raise ValueError(f"there is no block {id}: this pool has blocks 0 to {self.num_blocks - 1}")

    def write(self, layer: int, key: mx.array, value: mx.array, slots: mx.array) -> None:
        """Store the keys and values of tokens, in place: nothing is copied but them.

        The first call for a layer makes its arrays, of zeros, for heads and types such as these.

        Args:
            layer: counted from 0.
            key, value: [T, H, D]
            slots: [T], all different but for the sink. That they are slots of the pool is not checked: it
                would mean to wait for them.

        Raises:
            ValueError: there is no such `layer`; `key` and `value` do not fit each other; the `slots` are not
                as many, or no whole numbers, `slots.dtype`; or the shape or type of `key` (`key.dtype`) or
                `value` (`value.dtype`) is not that of what is held. Nothing is stored.
        """
        self._check_fits(layer, key, value, slots)
        for arrays, new in ((self._keys, key), (self._values, value)):
            held = arrays[layer]
            if held is None:
                held = mx.zeros((self.sink + self.block_size, *new.shape[1:]), new.dtype)
            arrays[layer] = store_rows(held, slots, new)

    def blocks(self, layer: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a layer by block, [num_blocks + 1, block_size, H, D] each.

        Do not keep them: while somebody does, the next write copies the whole pool.

        Raises:
            ValueError: there is no such `layer`, or nothing was ever written to it.
        """
        shape = (self.num_blocks + 1, self.block_size)
        keys, values = self._arrays(layer)
        return keys.reshape(*shape, *keys.shape[1:]), values.reshape(*shape, *values.shape[1:])

    def fetch(self, layer: int, slots: mx.array) -> tuple[mx.array, mx.array]:
        """A copy of what is in some slots of a layer.

        Args:
            slots: [...], of the pool, which is not checked either.

        Returns:
            keys, values: [..., H, D]

        Raises:
            ValueError: as for `blocks`, with the `layer`.
        """
        keys, values = self._arrays(layer)
        return keys[slots], values[slots]

    def release(self) -> None:
        """Give the memory back; the pool is as new."""
        self._keys = [None] * self.num_layers
        self._values = [None] * self.num_layers

    def _arrays(self, layer: int) -> tuple[mx.array, mx.array]:
        self._check_layer(layer)
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise ValueError(f"layer {layer} of the pool was never written to")
        return keys, values

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"there is no layer {layer}: this pool has layers 0 to {self.num_layers - 1}")

    def _check_fits(self, layer: int, key: mx.array, value: mx.array, slots: mx.array) -> None:
        self._check_layer(layer)
        if (key.ndim, value.ndim) != (3, 3) or key.shape[:2] != value.shape[:2]:
            raise ValueError(f"key and value must both be [T, H, D], got {key.shape} and {value.shape}")
        if slots.shape != key.shape[:1] or not mx.issubdtype(slots.dtype, mx.integer):
            raise ValueError(
                f"{key.shape[0]} tokens need as many slots, whole numbers, got {slots.shape} of {slots.dtype}"
            )
        for name, new, held in (("key", key, self._keys[layer]), ("value", value, self._values[layer])):
            if held is not None and (new.shape[1:], new.dtype) != (held.shape[1:], held.dtype):
                raise ValueError(
                    f"this pool holds {held.shape[1]} heads of {held.shape[2]} dimensions in {held.dtype}; "
                    f"the {name} is {new.shape} in {new.dtype}"
                )


class PagedKvCache(TinyKvCache):
    """One layer of one sequence in the blocks of a pool; to the model it is a cache like any other.

    It holds nothing itself: `block_ids` is the sequence's own list, which grows while the cache is in use.
    `attend` refuses an id that is none of the pool's (`check_blocks`).

    Args:
        pool: where its tokens are.
        layer: which layer of the pool.
        block_ids: its blocks, first to last; there may be none yet.
        offset: how many of its tokens are stored already.
    """

    def __init__(self, pool: PagedKvPool, layer: int, block_ids: Items[int], offset: int = 0) -> None:
        self.pool = pool
        self.layer = layer
        self.block_ids = block_ids
        self._offset = offset

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Store L new tokens behind those already stored, and attend to all of them.

        Args:
            query: [1, H_q, L, D]
            key, value: [1, H, L, D]
            attention: called with the keys and values of all S tokens, [1, H, S, D], and with the same mask.

        Returns:
            [1, H_q, L, D]
        """
        check_mask(mask)
        if key.ndim != 4 or key.shape[0] != 1 or key.shape[:3] != value.shape[:3]:
            raise ValueError(f"key and value must both be [1, H, L, D], got {key.shape} and {value.shape}")
        self.pool.check_blocks(self.block_ids)
        end = self._offset + key.shape[2]
        slots = mx.array(slot_mapping(self.block_ids, self.pool.block_size, 0, end))
        self.pool.write(self.layer, key[0].swapaxes(0, 1), value[0].swapaxes(0, 1), slots[self._offset :])
        self._offset = end
        keys, values = self.pool.fetch(self.layer, slots)
        return attention(query, keys.swapaxes(0, 1)[None], values.swapaxes(0, 1)[None], mask=mask)

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def state(self) -> list[mx.array]:
        """The arrays of the whole pool."""
        return self.pool.state

    def release(self) -> None:
        """Forget the tokens; freeing the blocks is up to the block manager, and the pool does not change."""
        self._offset = 0
