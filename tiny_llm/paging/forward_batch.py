"""One step as one pass of the model: the tokens of all sequences, back to back."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.paged_check import PagedAttention, unchecked

from ..model.kv_cache import TinyKvCache
from ..ops.attention import Attention, Mask
from ..ops.paged_attention import paged_attention_simple
from ..scheduling.block_manager import BlockTable
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .paged_kv_cache import Ints, PagedKvPool
from .pool import Pool


@dataclass(frozen=True)
class ForwardBatch(BlockLayout):
    """T tokens of N sequences, flattened. The model sees T rows of one token; attention separates sequences.

    It is a `BlockLayout` in which every token is a query: `seq_lens` counts the tokens after this step, and
    `block_tables` are padded with 0.

    Attributes:
        token_ids: [T, 1]
        positions: T numbers, the position of each token in its own sequence.
        slots: [T], where to store each token's key and value; the null slot if they are already stored.
        logits_indices: [number of final entries], the row of each final entry's last token.
    """

    token_ids: mx.array
    positions: list[int]
    slots: mx.array
    logits_indices: mx.array

    @classmethod
    def of(cls, output: SchedulerOutput, tables: Mapping[int, BlockTable], pool: Pool) -> "ForwardBatch":
        """Build the batch of a step.

        Args:
            output: the scheduler's output, with at least one entry.
            tables: the block table of each sequence, by id.
            pool: where keys and values are stored.

        Raises:
            ValueError: the table of sequence `id` is too short for its `num_tokens` after the step, or has a
                `block_id` that is not in the pool, or one twice.
        """
        entries = output.entries
        entry_tables = [tables[entry.sequence.id] for entry in entries]
        token_ids, positions, query_start_loc = flatten(entries)
        block_tables = pad_block_tables(entry_tables)
        check_room(entries, entry_tables, block_tables, pool)
        num_stored = np.array([table.num_stored_tokens for table in entry_tables])
        slots = batch_slots(positions, query_start_loc, block_tables, num_stored, pool)
        return cls(
            mx.array(block_tables),
            mx.array(query_start_loc),
            mx.array(np.array([entry.end for entry in entries], dtype=np.int32)),
            mx.array(token_ids[:, None]),
            positions.tolist(),
            mx.array(slots),
            mx.array(logits_indices(entries, query_start_loc)),
        )


def check_room(
    entries: Items[ScheduledTokens], tables: Items[BlockTable], block_tables: Ints, pool: Pool
) -> None:
    """Raise ValueError unless each sequence has blocks of the pool for all tokens after the step, none twice.

    Args:
        entries, tables: the step's entries, and the block table of each.
        block_tables: the same tables as one array, which is faster to search for ids outside the pool.
        pool: where keys and values are stored.
    """
    for entry, table in zip(entries, tables, strict=True):
        if entry.end > len(table.block_ids) * pool.block_size:
            raise ValueError(
                f"sequence {entry.sequence.id} has {entry.end} tokens after this step, but its table has "
                f"{len(table.block_ids)} blocks of {pool.block_size}: allocate blocks before the model runs"
            )
    are_in_pool = block_tables.min() >= 0 and block_tables.max() < pool.num_blocks
    for table in tables:
        if not are_in_pool or len({*table.block_ids}) < len(table.block_ids):
            pool.check_blocks(table.block_ids)


def flatten(entries: Items[ScheduledTokens]) -> tuple[Ints, Ints, Ints]:
    """Store the tokens of all entries back to back, in the order of the entries.

    Returns:
        token_ids: [T]
        positions: [T], the position of each token in its own sequence, counted from 0.
        query_start_loc: [N + 1]; the tokens of entry i are rows query_start_loc[i] to
            query_start_loc[i + 1] - 1.
    """
    raise NotImplementedError("week 3 day 3 task 1: flatten is not written yet")


def pad_block_tables(tables: Items[BlockTable]) -> Ints:
    """Write the block ids of each table into a row of one array, [N, longest], padded with 0."""
    raise NotImplementedError("week 3 day 3 task 1: pad_block_tables is not written yet")


def batch_slots(
    positions: Ints, query_start_loc: Ints, block_tables: Ints, num_stored: Ints, pool: Pool
) -> Ints:
    """Find the slot where each token's key and value are stored, [T].

    The first `num_stored` tokens of a sequence are already stored, in blocks that other sequences read as
    well. If such a token is computed again (because something has to be sampled after it), its key and value
    go to the null slot.

    Args:
        positions, query_start_loc, block_tables: of the batch.
        num_stored: [N], number of tokens that were already stored when the sequence was admitted.
        pool: has the block size and the null slot.
    """
    raise NotImplementedError("week 3 day 3 task 1: batch_slots is not written yet")


def logits_indices(entries: Items[ScheduledTokens], query_start_loc: Ints) -> Ints:
    """Find the row of each final entry's last token: [number of final entries]."""
    raise NotImplementedError("week 3 day 3 task 1: logits_indices is not written yet")


class RaggedKvCache(TinyKvCache):
    """One layer of the pool, as a cache for the rows of one batch.

    Args:
        pool: where keys and values are stored.
        layer: index of the layer.
        batch: the tokens that the rows belong to.
        attention: paged attention, which reads keys and values from blocks.
    """

    def __init__(
        self,
        pool: PagedKvPool,
        layer: int,
        batch: ForwardBatch,
        attention: PagedAttention = paged_attention_simple,
    ) -> None:
        self.pool = pool
        self.layer = layer
        self.batch = batch
        self.attention = unchecked(attention)  # ForwardBatch.of has already checked the numbers

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Store the T new tokens, then let each attend to its own sequence in the blocks.

        Args:
            query: [T, H_q, 1, D]
            key, value: [T, H, 1, D]
            attention, mask: ignored; the batch determines which keys each token sees.

        Returns:
            [T, H_q, 1, D]
        """
        raise NotImplementedError("week 3 day 3 task 4: RaggedKvCache.attend is not written yet")

    @property
    def offset(self) -> list[int]:
        return self.batch.positions

    @property
    def state(self) -> list[mx.array]:
        return self.pool.state

    def release(self) -> None:
        self.pool.release()
