"""Blocks that outlive their sequence: a prompt that begins like an earlier one is not computed again."""

from collections import OrderedDict

from .block_hashes import Hash, Prefix, Prefixes, chain_hash
from .block_manager import BlockManager
from .sequence import Sequence


class PrefixCachingBlockManager(BlockManager):
    """A block manager that keeps full blocks whose sequences are gone, and shares them with who begins alike.

    A block of a prompt is registered once it is full and computed, one of an answer when its sequence lets
    go: nobody begins with half an answer. Registered blocks that nobody holds are cached: they are there for
    whoever begins alike, and for whoever needs room once no block is free. The one that was let go of first
    is evicted first; of one sequence the last block.

    Args:
        num_blocks, block_size, overcommit, watermark: as for `BlockManager`.
        hash_function: as for `Prefixes`.

    Attributes:
        prefixes: those that are referred to here or by a sequence.
        block_of: the block that holds a prefix, for each that is registered.
        prefix_of: the same from the block's side.
        cached_blocks: registered and held by nobody, longest first.
        num_hit_tokens: tokens that were not computed, over all admissions.
        num_admitted_tokens: tokens that were there at admission, over all admissions.
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
        self.prefixes = Prefixes(block_size, hash_function)
        self.block_of: dict[Prefix, int] = {}
        self.prefix_of: dict[int, Prefix] = {}
        self.cached_blocks: OrderedDict[int, None] = OrderedDict()
        self.num_hit_tokens = 0
        self.num_admitted_tokens = 0

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that nobody holds and that are kept for their content."""
        return len(self.cached_blocks)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that nobody holds: the free ones and the cached ones, promised ones included."""
        return self.num_free_blocks + self.num_cached_blocks

    @property
    def hit_rate(self) -> float:
        """The share of the admitted tokens that was not computed; 0 before the first admission."""
        return self.num_hit_tokens / max(1, self.num_admitted_tokens)

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        """The longest row of registered blocks that hold its first tokens."""
        blocks = []
        for prefix in self.prefixes.of(sequence):
            if prefix not in self.block_of:
                break
            blocks.append(self.block_of[prefix])
        return blocks

    def register(self, sequence: Sequence) -> None:
        """Let others find the blocks that an admitted sequence has filled and computed since the last time.

        Where another block is registered for the same prefix that one stays, and this one is not registered.
        """
        table = self.tables[sequence.id]
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full <= table.num_registered:
            return
        prefixes = self.prefixes.of(sequence)
        for i in range(table.num_registered, num_full):
            if prefixes[i] not in self.block_of:
                self.block_of[prefixes[i]] = table.block_ids[i]
                self.prefix_of[table.block_ids[i]] = prefixes[i]
        table.num_registered = num_full

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """As for `BlockManager`; counts what need not be computed, and what is registered already."""
        if not super().admit(sequence, num_tokens):
            return False
        table = self.tables[sequence.id]
        table.num_registered = table.num_stored_tokens // self.block_size
        shared = table.block_ids[: table.num_registered]
        self.num_hit_tokens += self.prefix_length(sequence, shared)
        self.num_admitted_tokens += sequence.num_tokens
        return True

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """As for `BlockManager`; full blocks of a prompt that are computed can be shared from here on."""
        table = self.tables.get(sequence.id)
        if table is not None and table.num_registered < sequence.num_prompt_tokens // self.block_size:
            self.register(sequence)
        return super().allocate(sequence, num_tokens)

    def free(self, sequence: Sequence) -> None:
        """As for `BlockManager`; full blocks that it has computed stay, until their place is needed."""
        if sequence.id in self.tables:
            self.register(sequence)
        super().free(sequence)

    def hold(self, block: int) -> None:
        """As for `BlockManager`; a cached block is in use again."""
        self.cached_blocks.pop(block, None)
        super().hold(block)

    def put_back(self, block: int) -> None:
        """Keep a block that nobody holds any more if it is registered; else it is free."""
        if block in self.prefix_of:
            self.cached_blocks[block] = None
        else:
            super().put_back(block)

    def take(self) -> int:
        """A free block; if there is none, a cached one is evicted for it."""
        if not self.num_free_blocks:
            self.evict()
        return super().take()

    def evict(self) -> None:
        """Forget the content of the block that nobody has held for the longest time; it is free then."""
        block, _ = self.cached_blocks.popitem(last=False)
        del self.block_of[self.prefix_of.pop(block)]
        super().put_back(block)

    def forget_contents(self) -> None:
        """Forget the content of all blocks: none is found or cached any more.

        Who holds one goes on and registers nothing: without its first tokens nobody would find the others.
        """
        while self.cached_blocks:
            self.evict()
        self.block_of.clear()
        self.prefix_of.clear()
        for table in self.tables.values():
            table.num_registered = self.num_blocks
