"""Keys and values of all sequences in blocks of a pool that is made once."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..attention import Mask
from ..kv_cache import TinyKvCache

Ints = npt.NDArray[np.int32]


def slot_mapping(block_ids: Items[int], block_size: int, start: int, num_tokens: int) -> Ints:
    """The slot of each of the tokens from `start` on: [num_tokens].

    A pool has block_size slots for each block, block after block.
    """
    positions = np.arange(start, start + num_tokens, dtype=np.int32)
    blocks = np.array(block_ids, dtype=np.int32)
    return blocks[positions // block_size] * block_size + positions % block_size


class PagedKvPool:
    """Slots for the keys and values of tokens, in every layer; slot s of block b is b x block_size + s.

    One block more than are given out takes what nobody will read: the sink. The arrays of a layer are made
    when it is first written to, and are then as large as they will ever be.

    Args:
        num_layers: of the model.
        num_blocks, block_size: as for the block manager.
    """

    def __init__(self, num_layers: int, num_blocks: int, block_size: int) -> None:
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

    def write(self, layer: int, key: mx.array, value: mx.array, slots: mx.array) -> None:
        """Store the keys and values of tokens.

        Args:
            layer: counted from 0.
            key, value: [T, H, D]
            slots: [T], all different but for the sink.
        """
        for arrays, new in ((self._keys, key), (self._values, value)):
            held = arrays[layer]
            if held is None:
                held = mx.zeros((self.sink + self.block_size, *new.shape[1:]), new.dtype)
            held[slots] = new
            arrays[layer] = held

    def blocks(self, layer: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a layer by block, [num_blocks + 1, block_size, H, D] each.

        Do not keep them: while somebody does, the next write copies the whole pool.
        """
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise ValueError(f"layer {layer} of the pool was never written to")
        shape = (self.num_blocks + 1, self.block_size, *keys.shape[1:])
        return keys.reshape(shape), values.reshape(shape)

    def fetch(self, layer: int, slots: mx.array) -> tuple[mx.array, mx.array]:
        """A copy of what is in some slots of a layer.

        Args:
            slots: [...]

        Returns:
            keys, values: [..., H, D]
        """
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            raise ValueError(f"layer {layer} of the pool was never written to")
        return keys[slots], values[slots]

    def release(self) -> None:
        """Give the memory back; the pool is as new."""
        self._keys = [None] * self.num_layers
        self._values = [None] * self.num_layers


class PagedKvCache(TinyKvCache):
    """One layer of one sequence whose blocks are given; to the model it is a cache as any other.

    Args:
        pool: where its tokens are.
        layer: which layer of the pool.
        block_ids: its blocks; the list may grow while the cache is in use.
        offset: how many tokens are stored already.
    """

    def __init__(self, pool: PagedKvPool, layer: int, block_ids: Items[int], offset: int = 0) -> None:
        self.pool = pool
        self.layer = layer
        self.block_ids = block_ids
        self.offset = offset

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int, Mask]:
        B, _, L, _ = key.shape
        if B != 1 or value.shape[:3] != key.shape[:3]:
            raise ValueError(f"key and value must both be [1, H, L, D], got {key.shape} and {value.shape}")
        end = self.offset + L
        room = len(self.block_ids) * self.pool.block_size
        if end > room:
            raise ValueError(
                f"{end} tokens do not fit in {room} slots: allocate blocks before the model runs"
            )
        slots = mx.array(slot_mapping(self.block_ids, self.pool.block_size, 0, end))
        self.pool.write(self.layer, key[0].swapaxes(0, 1), value[0].swapaxes(0, 1), slots[self.offset :])
        self.offset = end
        keys, values = self.pool.fetch(self.layer, slots)
        return keys.swapaxes(0, 1)[None], values.swapaxes(0, 1)[None], end, mask

    @property
    def state(self) -> list[mx.array]:
        return self.pool.state

    def release(self) -> None:
        self.offset = 0
