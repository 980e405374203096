"""Keys and values of all sequences, stored in the blocks of one preallocated pool."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from kernel_runtime.limits import check_integer

from ..model.kv_cache import TinyKvCache
from ..ops.attention import Attention, Mask
from ..ops.writing import StoreRows, store_rows_simple

Ints = npt.NDArray[np.int32]


def slot_mapping(block_ids: Items[int], block_size: int, start: int, num_tokens: int) -> Ints:
    """Slots of `num_tokens` consecutive tokens of a sequence, from position `start` on: [num_tokens].

    Token p is in block block_ids[p // block_size]. Block b has the slots from b x block_size on.

    Raises:
        ValueError: start or num_tokens is negative, or the blocks have too few slots. Any of these errors
            shows `start`, `end` (which is start + num_tokens) and `len(block_ids)`.
    """
    raise NotImplementedError("week 3 day 2 task 1: slot_mapping is not written yet")


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
        raise NotImplementedError("week 3 day 2 task 4: PagedKvPool.write is not written yet")

    def blocks(self, layer: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a layer by block, [num_blocks + 1, block_size, H, D] each.

        Don't keep them. If anything still refers to them, the next write copies the whole pool.

        Raises:
            ValueError: `layer` does not exist, or has never been written to.
        """
        raise NotImplementedError("week 3 day 2 task 4: PagedKvPool.blocks is not written yet")

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
        raise NotImplementedError("week 3 day 2 task 4: PagedKvPool.fetch is not written yet")

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
        raise NotImplementedError("week 3 day 2 task 5: PagedKvCache.__init__ is not written yet")

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
        raise NotImplementedError("week 3 day 2 task 5: PagedKvCache.attend is not written yet")

    @property
    def offset(self) -> int:
        raise NotImplementedError("week 3 day 2 task 5: PagedKvCache.offset is not written yet")

    @property
    def state(self) -> list[mx.array]:
        """The arrays of the whole pool."""
        raise NotImplementedError("week 3 day 2 task 5: PagedKvCache.state is not written yet")

    def release(self) -> None:
        """Set `offset` to 0. The pool doesn't change, and the block manager still has to free the blocks."""
        raise NotImplementedError("week 3 day 2 task 5: PagedKvCache.release is not written yet")
