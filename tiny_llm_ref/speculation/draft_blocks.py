"""Which keys and values a draft model has stored: of each sequence, and in blocks that others may share."""

from collections.abc import Sequence as Items
from itertools import takewhile
from operator import eq
from typing import NamedTuple
from weakref import WeakValueDictionary

from ..scheduling.block_hashes import Prefix
from ..scheduling.block_manager import BlockManager, BlockTable
from ..scheduling.prefix_cache import PrefixCachingBlockManager
from ..scheduling.scheduler_output import ScheduledTokens
from ..scheduling.sequence import Sequence


class LastStored(NamedTuple):
    """The tokens of a sequence that were stored last: `end` in all, in these blocks of this table.

    The sequence may be a copy, `extended` by drafts.
    """

    table: BlockTable
    block_ids: tuple[int, ...]
    sequence: Sequence
    end: int


class DraftBlocks:
    """Remember what a draft model has stored in the blocks of a pool.

    The engine's model computes every token. A draft model doesn't: drafts rest at times, and a decode without
    drafts waits. So a block may be full, registered and shared, and still hold no keys of the draft model.

    Args:
        blocks: the scheduler's block manager.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._prefixes = blocks.prefixes if isinstance(blocks, PrefixCachingBlockManager) else None
        self._last: dict[int, LastStored] = {}
        self._prefix_of: WeakValueDictionary[int, Prefix] = WeakValueDictionary()  # what fills each block

    def num_stored(self, sequence: Sequence) -> int:
        """Number of a sequence's leading tokens that are stored in its blocks, without rejected drafts."""
        table, last = self._blocks.tables[sequence.id], self._last.get(sequence.id)
        if last is None or last.table is not table:  # it is new, or was preempted and has other blocks now
            filled = [self._prefix_of.get(block) for block in table.block_ids]
            return num_equal(filled, self._prefixes_of(sequence)) * self._blocks.block_size
        if last.sequence is sequence:
            return last.end
        first = last.sequence.num_computed_tokens  # drafts come after this many tokens at the earliest
        num_same = num_equal(last.sequence.token_ids[first : last.end], sequence.token_ids[first:])
        return min(first + num_same, num_equal(last.block_ids, table.block_ids) * self._blocks.block_size)

    def note(self, entry: ScheduledTokens) -> None:
        """Note that an entry is stored, as is all before it. Its sequence may have drafts at the end."""
        sequence, size = entry.sequence, self._blocks.block_size
        table = self._blocks.tables[sequence.id]
        self._last[sequence.id] = LastStored(table, tuple(table.block_ids), sequence, entry.end)
        for block in table.block_ids[entry.start // size : self._blocks.num_blocks_for(entry.end)]:
            self._prefix_of.pop(block, None)
        prefixes = self._prefixes_of(sequence)
        for i in reversed(range(min(entry.end // size, len(prefixes)))):
            if self._prefix_of.get(table.block_ids[i]) is prefixes[i]:
                break
            self._prefix_of[table.block_ids[i]] = prefixes[i]

    def forget(self, sequence_id: int) -> None:
        """Forget a sequence, but not what is stored in its full blocks."""
        self._last.pop(sequence_id, None)

    def _prefixes_of(self, sequence: Sequence) -> Items[Prefix]:
        """The prefixes of a sequence's full blocks; none without prefix caching, or of a copy with drafts."""
        if self._prefixes is None or sequence not in self._prefixes.chains:
            return ()
        return self._prefixes.of(sequence)


def num_equal(ones: Items[object], others: Items[object]) -> int:
    """Number of leading elements that are equal."""
    return len(list(takewhile(bool, map(eq, ones, others))))
