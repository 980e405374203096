"""A prefix cache with a second tier: what it evicts may be kept elsewhere, and comes back for a later prompt.

Only numbers here: the blocks' contents come from a function, and are copied by what computes the steps.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from .block_hashes import Prefix
from .prefix_cache import PrefixCachingBlockManager
from .sequence import Sequence

Contents = TypeVar("Contents")


class Copies(NamedTuple, Generic[Contents]):
    """What to copy before a step, in this order: out of evicted blocks, then into restored ones.

    Attributes:
        evicted: for each block whose contents the step may overwrite, the prefix that they belong to.
        restored: for each block that the step expects to be filled already, its contents.
    """

    evicted: dict[int, Prefix]
    restored: dict[int, Contents]


class TieredBlockManager(PrefixCachingBlockManager, Generic[Contents]):
    """A prefix cache that continues in a second tier, with the first prefix that is not in a block.

    A sequence is admitted with the tokens of both tiers as computed ones. What it restores is registered as
    what it computes: the step has both before it attends to any. If others run, a sequence waits until its
    contents have been fetched, `max_fetches` blocks in a step, so that no stream pauses for all of them.

    Args:
        num_blocks, block_size, overcommit, watermark: as for `BlockManager`.
        fetch: returns the contents of a prefix's last block, or None if the second tier doesn't have them.
        max_fetches: largest number of blocks to fetch in a step while sequences run.

    Attributes:
        fetched: contents for a sequence that waits.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        overcommit: bool,
        watermark: float,
        fetch: Callable[[Prefix], Contents | None],
        max_fetches: int,
    ) -> None:
        super().__init__(num_blocks, block_size, overcommit, watermark)
        self.fetch = fetch
        self.max_fetches = max_fetches
        self.fetched: WeakKeyDictionary[Prefix, Contents] = WeakKeyDictionary()
        self._num_fetches = 0  # in this step
        self._copies: Copies[Contents] = Copies({}, {})

    def take_copies(self) -> Copies[Contents]:
        """Return what to copy before the step that was scheduled last. The caller copies it."""
        copies, self._copies = self._copies, Copies({}, {})
        self._num_fetches = 0
        return copies

    def is_awaited(self, block: int) -> bool:
        """Whether a block is registered, but its contents are still to be restored."""
        return block in self._copies.restored

    def may_admit(self, sequence: Sequence) -> bool:
        """Ask as `BlockManager` does, then fetch what the second tier has, in as many steps as it takes."""
        if not super().may_admit(sequence):
            return False
        return self._fetch_all(sequence, self.max_fetches - self._num_fetches if self.tables else None)

    def find_prefix(self, sequence: Sequence) -> int:
        """Number of leading tokens that either tier holds; never the last. What is missing is fetched."""
        self._fetch_all(sequence)
        num_blocks = len(self.find_shared_blocks(sequence))
        return self.prefix_length(sequence, range(num_blocks + len(self._restorable(sequence, num_blocks))))

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """Admit as `PrefixCachingBlockManager` does, with more blocks, and restore what has been fetched."""
        num_shared = len(self.find_shared_blocks(sequence))
        prefixes = self._restorable(sequence, num_shared)
        num_stored = num_shared + len(prefixes)
        num_restored = self.prefix_length(sequence, range(num_stored))
        num_restored -= self.prefix_length(sequence, range(num_shared))
        if not super().admit(sequence, num_restored + num_tokens):
            return False
        table = self.tables[sequence.id]
        for prefix, block in zip(prefixes, table.block_ids[num_shared:], strict=False):
            self._copies.restored[block] = self.fetched[prefix]
        table.num_stored_tokens = num_stored * self.block_size
        self.num_hit_tokens += num_restored
        self.fetched.clear()
        return True

    def evict(self) -> None:
        """Evict as `PrefixCachingBlockManager` does, and remember to copy the contents first."""
        block = next(iter(self.cached_blocks))
        prefix = self.prefix_of[block]
        super().evict()
        if self._copies.restored.pop(block, None) is None:
            self._copies.evicted[block] = prefix

    def forget_contents(self) -> None:
        """Forget as `PrefixCachingBlockManager` does; there is nothing to copy any more."""
        super().forget_contents()
        self._copies = Copies({}, {})

    def _restorable(self, sequence: Sequence, num_shared: int) -> list[Prefix]:
        """The prefixes behind the shared ones whose contents have been fetched."""
        restorable = []
        for prefix in self.prefixes.of(sequence)[num_shared:]:
            if prefix not in self.fetched:
                break
            restorable.append(prefix)
        return restorable

    def _fetch_all(self, sequence: Sequence, most: int | None = None) -> bool:
        """Fetch what follows the shared blocks, `most` blocks at most. Return whether that was everything."""
        for prefix in self.prefixes.of(sequence)[len(self.find_shared_blocks(sequence)) :]:
            if prefix in self.fetched:
                continue
            if most is not None and most <= 0:
                return False
            contents = self.fetch(prefix)
            if contents is None:
                break
            self.fetched[prefix] = contents
            self._num_fetches += 1
            most = None if most is None else most - 1
        return True
