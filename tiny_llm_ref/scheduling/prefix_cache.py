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
        return len(self.cached_blocks)

    @property
    def num_available_blocks(self) -> int:
        """Number of blocks in no table, free or cached, including reserved ones."""
        return self.num_free_blocks + self.num_cached_blocks

    @property
    def hit_rate(self) -> float:
        """Fraction of the admitted tokens that did not have to be computed; 0 before any admission."""
        return self.num_hit_tokens / max(1, self.num_admitted_tokens)

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        """Find the longest run of registered blocks that hold the sequence's first tokens."""
        blocks = []
        for prefix in self.prefixes.of(sequence):
            if prefix not in self.block_of:
                break
            blocks.append(self.block_of[prefix])
        return blocks

    def register(self, sequence: Sequence, num_tokens: int | None = None) -> None:
        """Register the blocks that the first tokens of an admitted sequence fill, since the last call.

        If another block is already registered for the same prefix, keep that one and don't register this one.

        Args:
            sequence: an admitted sequence.
            num_tokens: number of leading tokens; by default, those that have been computed.
        """
        table = self.tables[sequence.id]
        num_full = (sequence.num_computed_tokens if num_tokens is None else num_tokens) // self.block_size
        if num_full <= table.num_registered:
            return
        prefixes = self.prefixes.of(sequence)
        for i in range(table.num_registered, num_full):
            if prefixes[i] not in self.block_of:
                self.block_of[prefixes[i]] = table.block_ids[i]
                self.prefix_of[table.block_ids[i]] = prefixes[i]
        table.num_registered = num_full

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """Admit as `BlockManager` does; on success, count hit and admitted tokens.

        The shared blocks at the start of the table are registered already.
        """
        if not super().admit(sequence, num_tokens):
            return False
        table = self.tables[sequence.id]
        table.num_registered = table.num_stored_tokens // self.block_size
        shared = table.block_ids[: table.num_registered]
        self.num_hit_tokens += self.prefix_length(sequence, shared)
        self.num_admitted_tokens += sequence.num_tokens
        return True

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate as `BlockManager` does, then register the blocks of the prompt that these tokens fill."""
        if not super().allocate(sequence, num_tokens):
            return False
        table = self.tables[sequence.id]
        if table.num_registered < sequence.num_prompt_tokens // self.block_size:
            end = max(sequence.num_computed_tokens, table.num_stored_tokens) + num_tokens
            self.register(sequence, min(end, sequence.num_prompt_tokens))
        return True

    def free(self, sequence: Sequence) -> None:
        """Free as `BlockManager` does, but first register the computed full blocks, to cache them.

        Blocks that were registered but not computed are no longer registered (`withdraw`).
        """
        if sequence.id in self.tables:
            self.register(sequence)
            self.withdraw(sequence)
        super().free(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Undo the registration of blocks that a sequence has not computed: its step failed, or never ran."""
        table = self.tables[sequence.id]
        num_full = max(sequence.num_computed_tokens, table.num_stored_tokens) // self.block_size
        for block in table.block_ids[num_full : table.num_registered]:
            if block in self.prefix_of:
                del self.block_of[self.prefix_of.pop(block)]

    def hold(self, block: int) -> None:
        """Hold as `BlockManager` does; a cached block is no longer cached."""
        self.cached_blocks.pop(block, None)
        super().hold(block)

    def put_back(self, block: int) -> None:
        """Cache a block that left its last table if it is registered; otherwise it is free."""
        if block in self.prefix_of:
            self.cached_blocks[block] = None
        else:
            super().put_back(block)

    def take(self) -> int:
        """Take a free block. If there is none, evict a cached one first."""
        if not self.num_free_blocks:
            self.evict()
        return super().take()

    def evict(self) -> None:
        """Forget the contents of the block that has been cached the longest, and make it free."""
        block, _ = self.cached_blocks.popitem(last=False)
        del self.block_of[self.prefix_of.pop(block)]
        super().put_back(block)

    def forget_contents(self) -> None:
        """Forget the contents of all blocks, so that none is cached or found any more.

        Sequences that hold blocks continue, but register nothing from now on. Their first blocks are no
        longer registered, so later ones could not be found.
        """
        while self.cached_blocks:
            self.evict()
        self.block_of.clear()
        self.prefix_of.clear()
        for table in self.tables.values():
            table.num_registered = self.num_blocks
