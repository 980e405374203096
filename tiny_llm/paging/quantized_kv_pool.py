"""Quantized keys and values of all sequences, and the newest ones of each sequence in floats."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import QuantizedBlocks

from ..model.config import ModelConfig
from ..ops.quantized_blocks import CODE_BITS, words_per_head
from ..ops.writing import QuantizeBlocks, StoreRows, quantize_blocks_simple, store_rows_simple
from ..scheduling.block_manager import BlockTable
from ..scheduling.scheduler_output import ScheduledTokens
from .paged_kv_cache import Ints, PagedKvPool, check_block_ids, check_pool_sizes

KEY_BITS = 8


def check_kv_bits(kv_bits: int) -> None:
    """Raise ValueError unless values can be quantized to that many bits."""
    if kv_bits not in CODE_BITS or not isinstance(kv_bits, int):
        raise ValueError(f"kv_bits must be 4 or 8, got {kv_bits}")


def quantized_bytes_per_token(config: ModelConfig, kv_bits: int) -> int:
    """Bytes of a token's quantized keys and values, over all layers.

    Args:
        config: has the numbers of layers and heads, and the dimension of a head.
        kv_bits: bits of a value, 4 or 8; keys have 8.

    Raises:
        ValueError: as for `words_per_head`.
    """
    num_words = sum(words_per_head(config.head_dim, bits) for bits in (KEY_BITS, kv_bits))
    return 4 * num_words * config.num_key_value_heads * config.num_hidden_layers


class Tails:
    """Say in which blocks of floats the tokens of a step go. Only numbers, no arrays.

    A step stores its tokens in floats first. So it needs a block of floats for each block of the pool that it
    stores tokens in. Of these, a sequence needs one in the next step: that of the block it continues in. This
    is its last block if that is not full, or an earlier one if drafts were rejected.

    Args:
        num_blocks, block_size: of the pool.

    Attributes:
        tail_of: [num_blocks + 1], the block of floats of each block that the last step stored tokens in; any
            number for other blocks. The last entry stands for the block of the null slot, which has block of
            floats 0 to itself.
        num_tails: one more than the highest number of a block of floats that has ever been given, so the
            pool needs that many; 1 at first, for block 0.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tail_of: Ints = np.zeros(num_blocks + 1, dtype=np.int32)
        self.num_tails = 1

    def assign(self, entries: Items[ScheduledTokens], tables: Items[BlockTable]) -> None:
        """Give blocks of floats to the blocks that a step stores tokens in.

        A sequence that continues in the middle of a block keeps its block of floats. All other blocks of
        floats but number 0 are free, since every running sequence is in every step. No two blocks that a step
        stores tokens in get the same. The numbers go into `tail_of`, and `num_tails` grows with them.

        Args:
            entries, tables: the step's entries, and the block table of each.
        """
        raise NotImplementedError("week 4 day 1 task 3: Tails.assign is not written yet")

    def full_blocks(self, entries: Items[ScheduledTokens], tables: Items[BlockTable]) -> Ints:
        """Find the blocks that are full after a step, and in which it stored tokens, [F].

        They come in the order of the entries, and those of an entry in the order of its table.
        """
        raise NotImplementedError("week 4 day 1 task 3: Tails.full_blocks is not written yet")


def stored_tokens(entry: ScheduledTokens, table: BlockTable) -> tuple[int, int]:
    """Return the first position that a step stores for an entry, and the position after the last.

    The step doesn't store the table's `num_stored_tokens` again, which were stored when the sequence was
    admitted. If no other tokens are left, both numbers are equal.
    """
    raise NotImplementedError("week 4 day 1 task 3: stored_tokens is not written yet")


class QuantizedKvPool:
    """Blocks of quantized keys and values in every layer, and blocks of floats for what is not full yet.

    A block is quantized in the step that fills it, before the tokens of that step attend. Until the next step
    it is still there in floats, so rejected drafts can be replaced.

    Args:
        num_layers, num_blocks, block_size: as for `PagedKvPool`.
        kv_bits: bits of a value, 4 or 8. Keys always have 8: they decide where attention goes, and an error
            there costs more.
        store_rows, quantize_blocks: write rows of floats, and quantized blocks, in place.

    Attributes:
        tails: which blocks of floats are in use.
        floats: the blocks of floats.

    Raises:
        ValueError: `num_layers`, `num_blocks` or `block_size` is below 1, or `kv_bits` is neither 4 nor 8.
    """

    floats: PagedKvPool
    tails: Tails

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        kv_bits: int = 8,
        store_rows: StoreRows = store_rows_simple,
        quantize_blocks: QuantizeBlocks = quantize_blocks_simple,
    ) -> None:
        check_pool_sizes(num_layers, num_blocks, block_size)
        check_kv_bits(kv_bits)
        self.store_rows, self.quantize_blocks = store_rows, quantize_blocks
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_bits = kv_bits
        self.release()

    @property
    def state(self) -> list[mx.array]:
        """The arrays of all layers that have been written to."""
        return [*self.floats.state, *(x for x in (*self._keys, *self._values) if x is not None)]

    @property
    def null_slot(self) -> int:
        """The slot for keys and values that need not be kept."""
        return self.num_blocks * self.block_size

    def check_blocks(self, block_ids: Items[int]) -> None:
        """Raise ValueError for a `block_id` outside the pool, or twice."""
        check_block_ids(block_ids, self.num_blocks)

    def reserve_tails(self) -> None:
        """Make room for as many blocks of floats as `tails` needs; at least twice as many as before."""
        if self.tails.num_tails <= self.floats.num_blocks:
            return
        num_tails = max(self.tails.num_tails, 2 * self.floats.num_blocks)
        larger = PagedKvPool(self.num_layers, num_tails, self.block_size, self.store_rows)
        slots = mx.arange(self.floats.null_slot)
        if self.floats.state:
            for layer in range(self.num_layers):
                larger.write(layer, *self.floats.fetch(layer, slots), slots)
        self.floats = larger

    def write(
        self,
        layer: int,
        key: mx.array,
        value: mx.array,
        tail_slots: mx.array,
        full_blocks: mx.array,
        full_tails: mx.array,
    ) -> None:
        """Store the keys and values of T tokens as floats, then quantize the blocks that are full.

        The first call for a layer makes its arrays of quantized blocks, `_keys[layer]` and `_values[layer]`,
        each [num_blocks, block_size, H, words per head], even if no block is full yet.

        Args:
            layer: counted from 0.
            key, value: [T, H, D], with D a multiple of 32.
            tail_slots, full_blocks, full_tails: as in `QuantizedBatch`. Their values are not checked.

        Raises:
            ValueError: as for `PagedKvPool.write`, or for `words_per_head`. Nothing is stored then.
        """
        raise NotImplementedError("week 4 day 1 task 4: QuantizedKvPool.write is not written yet")

    def blocks(self, layer: int) -> QuantizedBlocks:
        """Return what a layer stores, as attention reads it. Don't keep it: the next write would copy it all.

        Raises:
            ValueError: `layer` does not exist, or has never been written to.
        """
        tails = self.floats.blocks(layer)
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        return QuantizedBlocks(keys, values, *tails)

    def restore(self, layer: int, block_ids: mx.array, keys: mx.array, values: mx.array) -> None:
        """Store whole quantized blocks as `blocks` returned them.

        Args:
            layer: counted from 0.
            block_ids: [F], all different.
            keys, values: [F, block_size, H, words per head]
        """
        for arrays, new in ((self._keys, keys), (self._values, values)):
            held = arrays[layer]
            if held is None:
                held = mx.zeros((self.num_blocks, *new.shape[1:]), new.dtype)
            arrays[layer] = self.store_rows(held, block_ids, new)

    def release(self) -> None:
        """Free the memory. The pool is as good as new."""
        self.floats = PagedKvPool(self.num_layers, 1, self.block_size, self.store_rows)
        self.tails = Tails(self.num_blocks, self.block_size)
        self._keys: list[mx.array | None] = [None] * self.num_layers
        self._values: list[mx.array | None] = [None] * self.num_layers
