"""What a runner knows of the place where keys and values are stored, whatever their form."""

from collections.abc import Sequence as Items
from typing import Protocol

import mlx.core as mx


class Pool(Protocol):
    """Blocks of slots in every layer. Slot i of block b has the number b x block_size + i."""

    num_layers: int
    num_blocks: int
    block_size: int

    @property
    def null_slot(self) -> int:
        """The slot for keys and values that need not be kept."""

    @property
    def state(self) -> list[mx.array]:
        """The arrays of all layers that have been written to."""

    def check_blocks(self, block_ids: Items[int]) -> None:
        """Raise ValueError for a block of a table that is not in the pool, or is there twice."""

    def blocks(self, layer: int) -> tuple[mx.array, ...]:
        """What a layer stores: first the keys by block, then the values, [num_blocks or more, ...] each."""

    def restore(self, layer: int, block_ids: mx.array, keys: mx.array, values: mx.array) -> None:
        """Store again what `blocks` returned of some blocks, [F, ...] each."""

    def release(self) -> None:
        """Free the memory. The pool is as good as new."""
