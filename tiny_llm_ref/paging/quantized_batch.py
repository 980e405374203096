"""One step as one pass of the model, with quantized keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from kernel_runtime.paged_check import QuantizedPagedAttention, unchecked

from ..model.kv_cache import TinyKvCache
from ..ops.attention import Attention, Mask
from ..ops.quantized_paged_attention import quantized_paged_attention_simple
from ..scheduling.block_manager import BlockTable
from ..scheduling.scheduler_output import SchedulerOutput
from .forward_batch import ForwardBatch
from .quantized_kv_pool import QuantizedKvPool


@dataclass(frozen=True)
class QuantizedBatch(ForwardBatch):
    """A `ForwardBatch` that also says which tokens are stored as floats where, and which blocks are full.

    Attributes:
        tails: [T], the block of floats of the block that each token belongs to; 0 if the token is already
            stored.
        tail_slots: [T], the slot of floats where each token's key and value go; slot 0, which is never read,
            if they are already stored. Slot i of block of floats b has the number b x block_size + i.
        full_blocks: [F], the blocks that are full after this step, and in which it stored tokens.
        full_tails: [F], the block of floats of each of them.
    """

    tails: mx.array
    tail_slots: mx.array
    full_blocks: mx.array
    full_tails: mx.array

    @classmethod
    def of_quantized(
        cls, output: SchedulerOutput, tables: Mapping[int, BlockTable], pool: QuantizedKvPool
    ) -> "QuantizedBatch":
        """Build the batch of a step, after giving blocks of floats to the blocks that it stores tokens in.

        The pool has room for all of them afterwards.

        Arguments and errors are those of `ForwardBatch.of`.
        """
        batch = ForwardBatch.of(output, tables, pool)
        entry_tables = [tables[entry.sequence.id] for entry in output.entries]
        pool.tails.assign(output.entries, entry_tables)
        pool.reserve_tails()
        blocks, places = np.divmod(np.array(batch.slots), pool.block_size)
        tails = pool.tails.tail_of[blocks]
        full_blocks = pool.tails.full_blocks(output.entries, entry_tables)
        return cls(
            **vars(batch),
            tails=mx.array(tails),
            tail_slots=mx.array(tails * pool.block_size + places),
            full_blocks=mx.array(full_blocks),
            full_tails=mx.array(pool.tails.tail_of[full_blocks]),
        )


class QuantizedKvCache(TinyKvCache):
    """One layer of the pool, as a cache for the rows of one batch.

    Args:
        pool: where keys and values are stored.
        layer: index of the layer.
        batch: the tokens that the rows belong to.
        attention: attention to quantized blocks.
    """

    def __init__(
        self,
        pool: QuantizedKvPool,
        layer: int,
        batch: QuantizedBatch,
        attention: QuantizedPagedAttention = quantized_paged_attention_simple,
    ) -> None:
        self.pool = pool
        self.layer = layer
        self.batch = batch
        self.attention = unchecked(attention)  # QuantizedBatch.of_quantized has already checked the numbers

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Store the T new tokens, quantize the blocks they fill, then let each attend to its own sequence.

        Args:
            query: [T, H_q, 1, D]
            key, value: [T, H, 1, D]
            attention, mask: ignored; the batch determines which keys each token sees.

        Returns:
            [T, H_q, 1, D]
        """
        batch = self.batch
        places = batch.tail_slots, batch.full_blocks, batch.full_tails
        self.pool.write(self.layer, key[:, :, 0], value[:, :, 0], *places)
        return self.attention(query[:, :, 0], self.pool.blocks(self.layer), batch, batch.tails)[:, :, None]

    @property
    def offset(self) -> list[int]:
        return list(self.batch.positions)

    @property
    def state(self) -> list[mx.array]:
        return self.pool.state

    def release(self) -> None:
        self.pool.release()
