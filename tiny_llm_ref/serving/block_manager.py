"""Blocks of a pool: who holds which, who shares them, and who may have more. Numbers alone, no arrays."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from .sequence import Sequence


@dataclass
class BlockTable:
    """The blocks of a sequence, first to last.

    Attributes:
        block_ids: block i holds its tokens i x block_size on.
        num_stored_tokens: how many of its first tokens somebody else had stored before it was admitted.
        num_promised: how many blocks more it can count on.
        num_registered: how many of its blocks others may share, from the first on, or could not be; day 3.4.
    """

    block_ids: list[int] = field(default_factory=list)
    num_stored_tokens: int = 0
    num_promised: int = 0
    num_registered: int = 0


class BlockManager:
    """Gives blocks to sequences as they grow, and takes them back when the last who holds one lets go.

    Admission makes a promise, so that who runs can go on: by default all blocks that a sequence may ever
    need, in which case nobody who runs is ever refused. With `overcommit` it is the blocks of the tokens that
    are there; more are given while there are any, and the scheduler preempts when there are none.

    Args:
        num_blocks: blocks of the pool, numbered from 0.
        block_size: tokens of a block.
        overcommit: promise what a sequence needs now, not what it may need.
        watermark: the share of the pool that an admission leaves unpromised, unless nothing is held at all.

    Attributes:
        tables: the blocks of each sequence that was admitted, by its id.
        ref_counts: how many tables each block is in.
        num_promised: blocks that are free but promised.

    Raises:
        ValueError: `num_blocks` or `block_size` is below 1, or `watermark` is not from 0 to below 1.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, overcommit: bool = False, watermark: float = 0.0
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"a pool has a block of a token at least, got {num_blocks} blocks of {block_size} tokens"
            )
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is a share of the pool, from 0 to below 1, got {watermark}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.overcommit = overcommit
        self.num_watermark_blocks = int(watermark * num_blocks)
        self.tables: dict[int, BlockTable] = {}
        self.ref_counts = [0] * num_blocks
        self.num_promised = 0
        self._free = list(range(num_blocks))[::-1]

    @property
    def num_free_blocks(self) -> int:
        """Blocks whose content nobody needs, promised ones included."""
        return len(self._free)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that nobody holds, promised ones included: the free ones, and on day 3.4 cached ones too."""
        return self.num_free_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_available_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def check_fits(self, sequence: Sequence) -> None:
        """ValueError, with `id`, `max_num_tokens` and `num_blocks`, for one that could not run even alone."""
        needed = self.num_blocks_for(sequence.max_num_tokens)
        if needed > self.num_blocks:
            raise ValueError(
                f"sequence {sequence.id} may come to have {sequence.max_num_tokens} tokens, {needed} "
                f"blocks of {self.block_size}, and the pool has {self.num_blocks}: ask for fewer tokens or "
                "raise the number of blocks"
            )

    def find_prefix(self, sequence: Sequence) -> int:
        """How many of its first tokens need not be computed: those in shared blocks, but not its last one."""
        return self.prefix_length(sequence, self.find_shared_blocks(sequence))

    def find_shared_blocks(self, sequence: Sequence) -> Items[int]:
        """Blocks that hold its first tokens already; none here, since nothing is known of their content."""
        return ()

    def prefix_length(self, sequence: Sequence, shared: Items[int]) -> int:
        """How many of its first tokens need not be computed if these blocks hold them: never its last one."""
        return min(len(shared) * self.block_size, sequence.num_tokens - 1)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for that many tokens behind those that are computed; False, and no change, without room.

        The first call for a sequence admits it. A later one takes blocks that are free and promised to
        nobody, or to this sequence itself.

        Raises:
            ValueError: `num_tokens` is negative.
        """
        if num_tokens < 0:
            raise ValueError(f"there is no room to make for {num_tokens} tokens")
        table = self.tables.get(sequence.id)
        if table is None:
            return self.admit(sequence, num_tokens)
        end = sequence.num_computed_tokens + num_tokens
        if end <= len(table.block_ids) * self.block_size:
            return True
        num_new = self.num_blocks_for(end) - len(table.block_ids)
        if num_new > self.num_available_blocks - self.num_promised + table.num_promised:
            return False
        self.grow(table, num_new)
        return True

    def free(self, sequence: Sequence) -> None:
        """Give back all that it holds and was promised; a block that others hold too stays theirs.

        Of a table the last block is put back first.

        Raises:
            ValueError: the sequence, `id`, holds nothing: it was not admitted, or freed before.
        """
        if sequence.id not in self.tables:
            raise ValueError(f"sequence {sequence.id} holds no blocks: it was not admitted, or freed before")
        table = self.tables.pop(sequence.id)
        self.num_promised -= table.num_promised
        for block in reversed(table.block_ids):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.put_back(block)

    def grow(self, table: BlockTable, num_new: int) -> None:
        """Append so many new blocks to a table, out of its promise first. None for a number below 1."""
        for _ in range(num_new):
            block = self.take()
            self.hold(block)
            table.block_ids.append(block)
            if table.num_promised:
                table.num_promised -= 1
                self.num_promised -= 1

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a sequence a table with room for that many tokens to compute, and a promise for the others.

        The table starts with the blocks of `find_shared_blocks`, held for this sequence as well; what is
        computed comes behind them.

        Returns:
            Whether there is room for all that is promised; if not, nothing has changed.
        """
        shared = self.find_shared_blocks(sequence)
        end = self.prefix_length(sequence, shared) + num_tokens
        needed = self.num_blocks_for(max(end, self.num_tokens_to_promise(sequence))) - len(shared)
        if needed > self.num_blocks_to_promise(shared):
            return False
        for block in shared:
            self.hold(block)
        table = BlockTable(list(shared), len(shared) * self.block_size, needed)
        self.tables[sequence.id] = table
        self.num_promised += needed
        self.grow(table, self.num_blocks_for(end) - len(shared))
        return True

    def num_tokens_to_promise(self, sequence: Sequence) -> int:
        """The tokens that a sequence can count on having room for, once it is admitted."""
        return sequence.num_tokens if self.overcommit else sequence.max_num_tokens

    def num_blocks_to_promise(self, shared: Items[int] = ()) -> int:
        """Blocks that may be promised to who is admitted now and holds these shared ones as well.

        A shared block that nobody holds is one of the free ones, and then is not any more.
        """
        num_spared = self.num_watermark_blocks if self.tables else 0
        num_taken = sum(self.ref_counts[block] == 0 for block in shared)
        return self.num_available_blocks - self.num_promised - num_taken - num_spared

    def hold(self, block: int) -> None:
        """Count one table more that has this block."""
        self.ref_counts[block] += 1

    def take(self) -> int:
        """A block that nobody holds, of those put back the last one first."""
        return self._free.pop()

    def put_back(self, block: int) -> None:
        """Note that nobody holds this block any more."""
        self._free.append(block)

    def forget_contents(self) -> None:
        """The pool is a new one, and what blocks held is lost. Nothing is known of it here."""
