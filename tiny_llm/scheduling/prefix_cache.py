"""Prefix caching: blocks outlive their sequences, so a prompt that shares a beginning can reuse them."""

from collections import OrderedDict
from collections.abc import MutableMapping

from .block_hashes import Hash, Prefix, Prefixes, chain_hash
from .block_manager import BlockManager
from .cache_salts import SaltedPrefixes
from .sequence import Sequence


class PrefixCachingBlockManager(BlockManager):
    """A block manager that keeps full blocks of finished sequences, so that later prompts can reuse them.

    A block of a prompt is registered when the step that fills it is scheduled. The model stores all keys and
    values of a step before it attends to any, so sequences that are admitted to the same step can share the
    block already. A block of an answer is registered only when its sequence is freed, since no prompt begins
    with half an answer. Any sequence with the same beginning shares registered blocks. A registered block in
    no table is cached. When no block is free, the cached block that was released first is evicted. Of one
    sequence, the last block is released first.

    Args:
        num_blocks, block_size, overcommit, watermark: as for `BlockManager`.
        hash_function: as for `Prefixes`.

    Attributes:
        prefixes: the prefixes in use here or by a sequence.
        block_of: for each registered prefix, the block that holds it.
        prefix_of: the inverse, from registered blocks to prefixes.
        cached_blocks: registered blocks that are in no table, the first released first.
        num_hit_tokens: tokens that did not have to be computed, summed over all admissions.
        num_admitted_tokens: tokens of the sequence on admission, summed over all admissions.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        overcommit: bool = False,
        watermark: float = 0.0,
        hash_function: Hash = chain_hash,
    ) -> None:
        super().__init__(num_blocks, block_size, overcommit, watermark)
        self.prefixes: Prefixes = SaltedPrefixes(block_size, hash_function)
        self.block_of: MutableMapping[Prefix, int] = {}
        self.prefix_of: dict[int, Prefix] = {}
        self.cached_blocks: OrderedDict[int, None] = OrderedDict()
        self.num_hit_tokens = 0
        self.num_admitted_tokens = 0

    @property
    def num_cached_blocks(self) -> int:
        """Number of blocks in no table that are kept for their contents."""
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.num_cached_blocks is not written yet"
        )

    @property
    def num_available_blocks(self) -> int:
        """Number of blocks in no table, free or cached, including reserved ones."""
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.num_available_blocks is not written yet"
        )

    @property
    def hit_rate(self) -> float:
        """Fraction of the admitted tokens that did not have to be computed; 0 before any admission."""
        raise NotImplementedError(
            "week 3 day 4 task 6: PrefixCachingBlockManager.hit_rate is not written yet"
        )

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        """Find the longest run of registered blocks that hold the sequence's first tokens."""
        raise NotImplementedError(
            "week 3 day 4 task 2: PrefixCachingBlockManager.find_shared_blocks is not written yet"
        )

    def register(self, sequence: Sequence, num_tokens: int | None = None) -> None:
        """Register the blocks that the first tokens of an admitted sequence fill, since the last call.

        If another block is already registered for the same prefix, keep that one and don't register this one.

        Args:
            sequence: an admitted sequence.
            num_tokens: number of leading tokens; by default, those that have been computed.
        """
        raise NotImplementedError(
            "week 3 day 4 task 5: PrefixCachingBlockManager.register is not written yet"
        )

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """Admit as `BlockManager` does; on success, count hit and admitted tokens.

        The shared blocks at the start of the table are registered already.
        """
        raise NotImplementedError("week 3 day 4 task 6: PrefixCachingBlockManager.admit is not written yet")

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate as `BlockManager` does, then register the blocks of the prompt that these tokens fill."""
        raise NotImplementedError(
            "week 3 day 4 task 5: PrefixCachingBlockManager.allocate is not written yet"
        )

    def free(self, sequence: Sequence) -> None:
        """Free as `BlockManager` does, but first register the computed full blocks, to cache them.

        Blocks that were registered but not computed are no longer registered (`withdraw`).
        """
        raise NotImplementedError("week 3 day 4 task 5: PrefixCachingBlockManager.free is not written yet")

    def withdraw(self, sequence: Sequence) -> None:
        """Undo the registration of blocks that a sequence has not computed: its step failed, or never ran."""
        table = self.tables[sequence.id]
        num_full = max(sequence.num_computed_tokens, table.num_stored_tokens) // self.block_size
        for block in table.block_ids[num_full : table.num_registered]:
            if block in self.prefix_of:
                del self.block_of[self.prefix_of.pop(block)]

    def hold(self, block: int) -> None:
        """Hold as `BlockManager` does; a cached block is no longer cached."""
        raise NotImplementedError("week 3 day 4 task 3: PrefixCachingBlockManager.hold is not written yet")

    def put_back(self, block: int) -> None:
        """Cache a block that left its last table if it is registered; otherwise it is free."""
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.put_back is not written yet"
        )

    def take(self) -> int:
        """Take a free block. If there is none, evict a cached one first."""
        raise NotImplementedError("week 3 day 4 task 4: PrefixCachingBlockManager.take is not written yet")

    def evict(self) -> None:
        """Forget the contents of the block that has been cached the longest, and make it free."""
        raise NotImplementedError("week 3 day 4 task 4: PrefixCachingBlockManager.evict is not written yet")

    def forget_contents(self) -> None:
        """Forget the contents of all blocks, so that none is cached or found any more.

        Sequences that hold blocks continue, but register nothing from now on. Their first blocks are no
        longer registered, so later ones could not be found.
        """
        raise NotImplementedError(
            "week 3 day 4 task 4: PrefixCachingBlockManager.forget_contents is not written yet"
        )
