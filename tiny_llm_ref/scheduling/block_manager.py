"""Bookkeeping for the blocks of a pool: holders, sharing and reservations. Only numbers, no arrays."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from kernel_runtime.limits import check_integer

from .sequence import Sequence


@dataclass
class BlockTable:
    """The blocks of a sequence, first to last.

    Attributes:
        block_ids: entry i is the block that holds tokens i x block_size and up.
        num_stored_tokens: number of leading tokens that were already stored when it was admitted.
        num_reserved: number of further blocks that are reserved for it.
        num_registered: number of leading blocks that `register` need not look at again (day 3.4).
    """

    block_ids: list[int] = field(default_factory=list)
    num_stored_tokens: int = 0
    num_reserved: int = 0
    num_registered: int = 0


class BlockManager:
    """Give blocks to sequences as they grow, and take a block back when its last holder frees it.

    Admission reserves blocks. By default it reserves every block that the sequence may ever need, so a
    running sequence is never refused a block. With `overcommit` it reserves only the blocks of the tokens
    that exist already. The sequence gets more while any are available. When there are none, the scheduler
    preempts.

    Args:
        num_blocks: number of blocks in the pool; they are numbered from 0.
        block_size: tokens per block.
        overcommit: reserve what a sequence needs now instead of what it may ever need.
        watermark: fraction of the pool that an admission must leave unreserved. It does not apply while no
            sequence is admitted.

    Attributes:
        tables: the block table of each admitted sequence, by its id.
        ref_counts: for each block, the number of tables that contain it.
        num_reserved: number of free blocks that are reserved.

    Raises:
        ValueError: `num_blocks` or `block_size` is no integer or below 1, or `watermark` is not at least 0
            and below 1.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, overcommit: bool = False, watermark: float = 0.0
    ) -> None:
        check_integer("num_blocks", num_blocks, 1)
        check_integer("block_size", block_size, 1)
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark must be at least 0 and below 1, got {watermark}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.overcommit = overcommit
        self.num_watermark_blocks = int(watermark * num_blocks)
        self.tables: dict[int, BlockTable] = {}
        self.ref_counts = [0] * num_blocks
        self.num_reserved = 0
        self._free = list(range(num_blocks))[::-1]

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks whose contents are not needed, including reserved ones."""
        return len(self._free)

    @property
    def num_available_blocks(self) -> int:
        """Number of blocks in no table, including reserved ones: free blocks and, on day 3.4, cached ones."""
        return self.num_free_blocks

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that are in some table."""
        return self.num_blocks - self.num_available_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that hold this many tokens; the last one may be partly full."""
        return -(-num_tokens // self.block_size)

    def check_fits(self, sequence: Sequence) -> None:
        """Check that a sequence would fit if it ran alone.

        Raises:
            ValueError: sequence `id` may need more blocks for its `max_num_tokens` than `num_blocks`.
        """
        needed = self.num_blocks_for(sequence.max_num_tokens)
        if needed > self.num_blocks:
            raise ValueError(
                f"sequence {sequence.id} may need {needed} blocks for {sequence.max_num_tokens} tokens, but "
                f"the pool has {self.num_blocks}: ask for fewer tokens or make the pool larger"
            )

    def find_prefix(self, sequence: Sequence) -> int:
        """Number of leading tokens that need not be computed, as shared blocks hold them; never the last."""
        return self.prefix_length(sequence, self.find_shared_blocks(sequence))

    def find_shared_blocks(self, sequence: Sequence) -> Items[int]:
        """Blocks that already hold the first tokens of a sequence; none here, as contents are not tracked."""
        return ()

    def prefix_length(self, sequence: Sequence, shared: Items[int]) -> int:
        """Number of leading tokens that need not be computed if `shared` holds them; never the last token."""
        return min(len(shared) * self.block_size, sequence.num_tokens - 1)

    def may_admit(self, sequence: Sequence) -> bool:
        """Whether there would be room if all of a sequence's full blocks were shared; looks nothing up."""
        needed = self.num_blocks_for(self.num_tokens_to_reserve(sequence))
        return needed - sequence.num_tokens // self.block_size <= self.num_blocks_to_reserve()

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` after the computed ones. If there is no room, change nothing.

        The first call for a sequence admits it. Later calls take available blocks that are not reserved, or
        that are reserved for this sequence.

        Returns:
            Whether there is room.

        Raises:
            ValueError: `num_tokens` is negative.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        table = self.tables.get(sequence.id)
        if table is None:
            return self.admit(sequence, num_tokens)
        end = sequence.num_computed_tokens + num_tokens
        if end <= len(table.block_ids) * self.block_size:
            return True
        num_new = self.num_blocks_for(end) - len(table.block_ids)
        if num_new > self.num_available_blocks - self.num_reserved + table.num_reserved:
            return False
        self.grow(table, num_new)
        return True

    def free(self, sequence: Sequence) -> None:
        """Return a sequence's blocks and its reservation. A block that other tables share stays in use.

        Put back the last block of the table first.

        Raises:
            ValueError: sequence `id` has no table: it was never admitted, or it is already freed.
        """
        if sequence.id not in self.tables:
            raise ValueError(
                f"sequence {sequence.id} holds no blocks: it was never admitted, or it is already freed"
            )
        table = self.tables.pop(sequence.id)
        self.num_reserved -= table.num_reserved
        for block in reversed(table.block_ids):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.put_back(block)

    def room_for_drafts(self, sequence: Sequence, num_tokens: int) -> int:
        """Number of drafts that could be stored after `num_tokens` more tokens, at no other sequence's cost.

        A draft may use the rest of the last block, and blocks that are reserved for its sequence or that are
        available and not reserved. It never takes a block whose contents could be reused.

        Args:
            sequence: an admitted sequence.
            num_tokens: tokens that come first, for which `allocate` has made room.
        """
        table = self.tables[sequence.id]
        num_granted = self.num_available_blocks - self.num_reserved + table.num_reserved
        num_blocks = len(table.block_ids) + max(0, min(num_granted, self.num_free_blocks))
        return num_blocks * self.block_size - sequence.num_computed_tokens - num_tokens

    def shrink(self, sequence: Sequence) -> None:
        """Return the blocks beyond a sequence's computed tokens, which only rejected drafts have used.

        Without `overcommit`, they are reserved for the sequence again.
        """
        table = self.tables[sequence.id]
        while len(table.block_ids) > self.num_blocks_for(sequence.num_computed_tokens):
            block = table.block_ids.pop()
            self.ref_counts[block] -= 1
            self.put_back(block)
            if not self.overcommit:
                table.num_reserved += 1
                self.num_reserved += 1

    def grow(self, table: BlockTable, num_new: int) -> None:
        """Append `num_new` blocks to a table, using its reservation first. Do nothing if it is below 1."""
        for _ in range(num_new):
            block = self.take()
            self.hold(block)
            table.block_ids.append(block)
            if table.num_reserved:
                table.num_reserved -= 1
                self.num_reserved -= 1

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make a block table with room to compute `num_tokens`, and reserve blocks for the rest.

        The table starts with the blocks of `find_shared_blocks`, which this sequence now holds as well. The
        tokens to compute start at `prefix_length`. If the whole prompt is shared, that is its last token, in
        the last shared block.

        Returns:
            Whether there are enough blocks for the tokens to compute and for the reservation. If not,
            nothing has changed.
        """
        shared = self.find_shared_blocks(sequence)
        end = self.prefix_length(sequence, shared) + num_tokens
        needed = self.num_blocks_for(max(end, self.num_tokens_to_reserve(sequence))) - len(shared)
        if needed > self.num_blocks_to_reserve(shared):
            return False
        for block in shared:
            self.hold(block)
        table = BlockTable(list(shared), len(shared) * self.block_size, needed)
        self.tables[sequence.id] = table
        self.num_reserved += needed
        self.grow(table, self.num_blocks_for(end) - len(shared))
        return True

    def num_tokens_to_reserve(self, sequence: Sequence) -> int:
        """Number of tokens for which admission reserves room."""
        return sequence.num_tokens if self.overcommit else sequence.max_num_tokens

    def num_blocks_to_reserve(self, shared: Items[int] = ()) -> int:
        """Number of blocks available to reserve for a new sequence that reuses `shared`.

        A shared block that is in no table yet counts as available until this sequence holds it, so subtract
        it. Subtract the watermark as well, unless no sequence is admitted.
        """
        num_spared = self.num_watermark_blocks if self.tables else 0
        num_taken = sum(self.ref_counts[block] == 0 for block in shared)
        return self.num_available_blocks - self.num_reserved - num_taken - num_spared

    def hold(self, block: int) -> None:
        """Count one more table that contains this block."""
        self.ref_counts[block] += 1

    def take(self) -> int:
        """Pop the most recently freed block."""
        return self._free.pop()

    def put_back(self, block: int) -> None:
        """Return a block that is no longer in any table."""
        self._free.append(block)

    def forget_contents(self) -> None:
        """Called when the pool is new and has no contents. Does nothing, as contents are not tracked."""
