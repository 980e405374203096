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
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.num_cached_blocks is not written yet"
        )

    @property
    def num_available_blocks(self) -> int:
        """Blocks that nobody holds: the free ones and the cached ones, promised ones included."""
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.num_available_blocks is not written yet"
        )

    @property
    def hit_rate(self) -> float:
        """The share of the admitted tokens that was not computed; 0 before the first admission."""
        raise NotImplementedError(
            "week 3 day 4 task 6: PrefixCachingBlockManager.hit_rate is not written yet"
        )

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        """The longest row of registered blocks that hold its first tokens."""
        raise NotImplementedError(
            "week 3 day 4 task 2: PrefixCachingBlockManager.find_shared_blocks is not written yet"
        )

    def register(self, sequence: Sequence) -> None:
        """Let others find the blocks that an admitted sequence has filled and computed since the last time.

        Where another block is registered for the same prefix that one stays, and this one is not registered.
        """
        raise NotImplementedError(
            "week 3 day 4 task 5: PrefixCachingBlockManager.register is not written yet"
        )

    def admit(self, sequence: Sequence, num_tokens: int) -> bool:
        """As for `BlockManager`; counts what need not be computed, and what is registered already."""
        raise NotImplementedError("week 3 day 4 task 6: PrefixCachingBlockManager.admit is not written yet")

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """As for `BlockManager`; full blocks of a prompt that are computed can be shared from here on."""
        raise NotImplementedError(
            "week 3 day 4 task 5: PrefixCachingBlockManager.allocate is not written yet"
        )

    def free(self, sequence: Sequence) -> None:
        """As for `BlockManager`; full blocks that it has computed stay, until their place is needed."""
        raise NotImplementedError("week 3 day 4 task 5: PrefixCachingBlockManager.free is not written yet")

    def hold(self, block: int) -> None:
        """As for `BlockManager`; a cached block is in use again."""
        raise NotImplementedError("week 3 day 4 task 3: PrefixCachingBlockManager.hold is not written yet")

    def put_back(self, block: int) -> None:
        """Keep a block that nobody holds any more if it is registered; else it is free."""
        raise NotImplementedError(
            "week 3 day 4 task 3: PrefixCachingBlockManager.put_back is not written yet"
        )

    def take(self) -> int:
        """A free block; if there is none, a cached one is evicted for it."""
        raise NotImplementedError("week 3 day 4 task 4: PrefixCachingBlockManager.take is not written yet")

    def evict(self) -> None:
        """Forget the content of the block that nobody has held for the longest time; it is free then."""
        raise NotImplementedError("week 3 day 4 task 4: PrefixCachingBlockManager.evict is not written yet")

    def forget_contents(self) -> None:
        """Forget the content of all blocks: none is found or cached any more.

        Who holds one goes on and registers nothing: without its first tokens nobody would find the others.
        """
        raise NotImplementedError(
            "week 3 day 4 task 4: PrefixCachingBlockManager.forget_contents is not written yet"
        )
