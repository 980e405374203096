"""Keys and values of all sequences, stored in the blocks of one preallocated pool."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.limits import check_integer

from ..model.kv_cache import TinyKvCache
from ..ops.attention import Attention, Mask, check_mask
from ..ops.writing import StoreRows, store_rows_simple

Ints = npt.NDArray[np.int32]


def slot_mapping(block_ids: Items[int], block_size: int, start: int, num_tokens: int) -> Ints:
    """Slots of `num_tokens` consecutive tokens of a sequence, from position `start` on: [num_tokens].

    Token p is in block block_ids[p // block_size]. Block b has the slots from b x block_size on.

    Raises:
        ValueError: start or num_tokens is negative, or the blocks have too few slots. Any of these errors
            shows `start`, `end` (which is start + num_tokens) and `len(block_ids)`.
    """
    end, room = start + num_tokens, len(block_ids) * block_size
    if start < 0 or num_tokens < 0 or end > room:
        raise ValueError(
            f"tokens {start} to {end} do not fit in {len(block_ids)} blocks of {block_size}, which have "
            f"{room} slots: allocate blocks before the model runs"
        )
    positions = np.arange(start, end, dtype=np.int32)
    blocks = np.array(block_ids, dtype=np.int32)
    return blocks[positions // block_size] * block_size + positions % block_size


def check_pool_sizes(num_layers: int, num_blocks: int, block_size: int) -> None:
    """Raise ValueError unless `num_layers`, `num_blocks` and `block_size` are integers of at least 1."""
    for name, value in (("num_layers", num_layers), ("num_blocks", num_blocks), ("block_size", block_size)):
        check_integer(name, value, 1)


def check_block_ids(block_ids: Items[int], num_blocks: int) -> None:
    """Raise ValueError unless the blocks of a sequence are different blocks of a pool of `num_blocks`."""
    for id in block_ids:
        if not 0 <= id < num_blocks:
            raise ValueError(f"block {id} does not exist: this pool has blocks 0 to {num_blocks - 1}")
    if len(set(block_ids)) < len(block_ids):
        twice = next(id for id in block_ids if block_ids.count(id) > 1)
        raise ValueError(f"a table has block {twice} twice, so its tokens would be stored over each other")


class PagedKvPool:
    """Slots for keys and values in every layer. Slot i of block b has the number b x block_size + i.

    The pool has one block more than the block manager gives out. It holds the null slot, a slot for keys and
    values that are never read. A layer's arrays are made at full size when the layer is first written to.

    Args:
        num_layers: number of layers of the model.
        num_blocks, block_size: as for the block manager.
        store_rows: writes rows of an array in place, and returns the array to keep instead.

    Raises:
        ValueError: `num_layers`, `num_blocks` or `block_size` is below 1.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, store_rows: StoreRows = store_rows_simple
    ) -> None:
        check_pool_sizes(num_layers, num_blocks, block_size)
        self.store_rows = store_rows
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._keys: list[mx.array | None] = [None] * num_layers
        self._values: list[mx.array | None] = [None] * num_layers

    @property
    def null_slot(self) -> int:
        """The slot for keys and values that need not be kept."""
        return self.num_blocks * self.block_size

    @property
    def state(self) -> list[mx.array]:
        """The arrays of all layers that have been written to."""
        return [x for x in (*self._keys, *self._values) if x is not None]

    def check_blocks(self, block_ids: Items[int]) -> None:
        """Raise ValueError for a `block_id` outside the pool, as the block of the null slot is, or twice."""
        check_block_ids(block_ids, self.num_blocks)

    def write(self, layer: int, key: mx.array, value: mx.array, slots: mx.array) -> None:
        """Store the keys and values of T tokens in place, without copying the pool.

        The first call for a layer makes its arrays: zeros, with the heads, dimensions and types of this call.

        Args:
            layer: counted from 0.
            key, value: [T, H, D], with the same T and H. D and the type may differ between the two.
            slots: [T], all different except for the null slot. Their values are not checked, since that
                would wait for them to be computed.

        Raises:
            ValueError: `layer` does not exist; the shapes of `key` and `value` do not fit each other; the
                shape of `slots` is not [T], or `slots.dtype` is not an integer type; or heads, dimensions or
                type of `key` (`key.dtype`) or `value` (`value.dtype`) differ from what the layer already
                stores. Nothing is stored then.
        """
        self._check_fits(layer, key, value, slots)
        for arrays, new in ((self._keys, key), (self._values, value)):
            held = arrays[layer]
            if held is None:
                held = mx.zeros((self.null_slot + self.block_size, *new.shape[1:]), new.dtype)
            arrays[layer] = self.store_rows(held, slots, new)

    def blocks(self, layer: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a layer by block, [num_blocks + 1, block_size, H, D] each.

        Don't keep them. If anything still refers to them, the next write copies the whole pool.

        Raises:
            ValueError: `layer` does not exist, or has never been written to.
        """
        shape = (self.num_blocks + 1, self.block_size)
        keys, values = self._arrays(layer)
        return keys.reshape(*shape, *keys.shape[1:]), values.reshape(*shape, *values.shape[1:])

    def fetch(self, layer: int, slots: mx.array) -> tuple[mx.array, mx.array]:
        """Copy the keys and values in some slots of a layer.

        Args:
            layer: counted from 0.
            slots: [...], slots of the pool. Their values are not checked here either.

        Returns:
            keys, values: [..., H, D]

        Raises:
            ValueError: as for `blocks`, with the `layer`.
        """
        keys, values = self._arrays(layer)
        return keys[slots], values[slots]

    def restore(self, layer: int, block_ids: mx.array, keys: mx.array, values: mx.array) -> None:
        """Store whole blocks as `blocks` returned them.

        Args:
            layer: counted from 0.
            block_ids: [F], all different.
            keys, values: [F, block_size, H, D]

        Raises:
            ValueError: as for `write`.
        """
        slots = block_ids[:, None] * self.block_size + mx.arange(self.block_size)
        self.write(layer, keys.flatten(0, 1), values.flatten(0, 1), slots.flatten())

    def release(self) -> None:
        """Free the memory. The pool is as good as new."""
        self._keys = [None] * self.num_layers
        self._values = [None] * self.num_layers

    def _arrays(self, layer: int) -> tuple[mx.array, mx.array]:
        self._check_layer(layer)
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise ValueError(f"layer {layer} of the pool has never been written to")
        return keys, values

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"layer {layer} does not exist: this pool has layers 0 to {self.num_layers - 1}")

    def _check_fits(self, layer: int, key: mx.array, value: mx.array, slots: mx.array) -> None:
        self._check_layer(layer)
        if (key.ndim, value.ndim) != (3, 3) or key.shape[:2] != value.shape[:2]:
            raise ValueError(f"key and value must both be [T, H, D], got {key.shape} and {value.shape}")
        if slots.shape != key.shape[:1] or not mx.issubdtype(slots.dtype, mx.integer):
            raise ValueError(
                f"slots must be [{key.shape[0]}] integers, one per token, got {slots.shape} of {slots.dtype}"
            )
        for name, new, held in (("key", key, self._keys[layer]), ("value", value, self._values[layer])):
            if held is not None and (new.shape[1:], new.dtype) != (held.shape[1:], held.dtype):
                raise ValueError(
                    f"this pool holds {held.shape[1]} heads of {held.shape[2]} dimensions in {held.dtype}, "
                    f"but the {name} is {new.shape} in {new.dtype}"
                )


class PagedKvCache(TinyKvCache):
    """One layer of one sequence, stored in the blocks of a pool. The model uses it like any other cache.

    The cache holds no arrays. `block_ids` is the sequence's own list, not a copy, and it grows while the
    cache is in use.

    Args:
        pool: where its tokens are stored.
        layer: index of the layer.
        block_ids: the sequence's blocks, first to last; may be empty at first.
        offset: number of tokens that are already stored.
    """

    def __init__(self, pool: PagedKvPool, layer: int, block_ids: Items[int], offset: int = 0) -> None:
        self.pool = pool
        self.layer = layer
        self.block_ids = block_ids
        self._offset = offset

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Store L new tokens after those already stored, and attend to all of them.

        Args:
            query: [1, H_q, L, D]
            key, value: [1, H, L, D]
            attention: called with the keys and values of all S tokens, [1, H, S, D], and with the mask.
            mask: passed to `attention` unchanged.

        Returns:
            [1, H_q, L, D]

        Raises:
            ValueError: as for `TinyKvCache.attend`; an id is not in the pool, or there twice
                (`check_blocks`); or the blocks have too few slots for all tokens (`slot_mapping`). Nothing is
                stored then.
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
        """Set `offset` to 0. The pool doesn't change, and the block manager still has to free the blocks."""
        self._offset = 0
