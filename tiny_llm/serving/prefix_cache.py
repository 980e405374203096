"""Blocks that outlive their sequence: a prompt that begins like an earlier one is not computed again."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from .block_manager import BlockManager
from .sequence import Sequence

Hash = Callable[[int, tuple[int, ...]], int]
"""From the hash of the blocks before, and a block's tokens, to the hash of all of them."""


def chain_hash(parent: int, token_ids: tuple[int, ...]) -> int:
    """Python's hash of both; the same in every process, since it is of integers."""
    return hash((parent, token_ids))


@dataclass(frozen=True, eq=False)
class Prefix:
    """A full block's tokens and all those before it."""

    parent: "Prefix | None"
    token_ids: tuple[int, ...]
    hash: int

    def has_same_tokens(self, other: "Prefix") -> bool:
        """Whether both are the same tokens from the first on; a hash that is equal does not say so."""
        mine: Prefix | None = self
        theirs: Prefix | None = other
        while mine is not theirs:
            if mine is None or theirs is None or mine.token_ids != theirs.token_ids:
                return False
            mine, theirs = mine.parent, theirs.parent
        return True


class PrefixCachingBlockManager(BlockManager):
    """A block manager that keeps full blocks whose sequences are gone, and shares them with who begins alike.

    A block is registered once it is full and computed. When nobody holds it any more it is kept, until its
    place is needed: the one that was let go of first is evicted first, of one sequence the last block.

    Args:
        num_blocks, block_size, overcommit, watermark: as for `BlockManager`.
        hash_function: makes collisions as rare as you like; they are looked for, so they cost time alone.

    Attributes:
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
        self.hash_function = hash_function
        self.num_hit_tokens = 0
        self.num_admitted_tokens = 0
        self._block_of: dict[int, int] = {}  # by the hash of its prefix
        self._prefix_of: dict[int, Prefix] = {}  # by block
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered and held by nobody, longest first
        self._prefixes: WeakKeyDictionary[Sequence, list[Prefix]] = WeakKeyDictionary()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached and promised ones included."""
        return super().num_free_blocks + len(self._idle)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that nobody holds and that are kept for their content."""
        return len(self._idle)

    def find_shared_blocks(self, sequence: Sequence) -> list[int]:
        """The longest row of registered blocks that hold its first tokens."""
        blocks = []
        for prefix in self._prefixes_of(sequence, sequence.num_tokens // self.block_size):
            block = self._block_of.get(prefix.hash)
            if block is None or not self._prefix_of[block].has_same_tokens(prefix):
                break
            blocks.append(block)
        return blocks

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """As for `BlockManager`; what the sequence has computed by now can be shared from here on."""
        is_admission = sequence.id not in self.tables
        if not is_admission:
            self._register(sequence)
        is_met = super().allocate(sequence, num_tokens)
        if is_met and is_admission:
            table = self.tables[sequence.id]
            table.num_registered = table.num_stored_tokens // self.block_size
            self.num_admitted_tokens += sequence.num_tokens
            self.num_hit_tokens += min(table.num_stored_tokens, sequence.num_tokens - 1)
        return is_met

    def free(self, sequence: Sequence) -> None:
        """Give back all that it holds; full blocks that it computed stay, until their place is needed."""
        if sequence.id in self.tables:
            self._register(sequence)
        super().free(sequence)

    def _register(self, sequence: Sequence) -> None:
        """Make the blocks known that it has filled and computed since the last time."""
        table = self.tables[sequence.id]
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full <= table.num_registered:
            return
        prefixes = self._prefixes_of(sequence, num_full)
        for i in range(table.num_registered, num_full):
            block, prefix = table.block_ids[i], prefixes[i]
            if prefix.hash not in self._block_of:
                self._block_of[prefix.hash] = block
                self._prefix_of[block] = prefix
        table.num_registered = num_full

    def _prefixes_of(self, sequence: Sequence, num_blocks: int) -> list[Prefix]:
        """Those of its first full blocks; each is made once, since tokens are only ever appended."""
        prefixes = self._prefixes.setdefault(sequence, [])
        for start in range(len(prefixes) * self.block_size, num_blocks * self.block_size, self.block_size):
            parent = prefixes[-1] if prefixes else None
            token_ids = tuple(sequence.token_ids[start : start + self.block_size])
            value = self.hash_function(parent.hash if parent else 0, token_ids)
            prefixes.append(Prefix(parent, token_ids, value))
        return prefixes[:num_blocks]

    def hold(self, block: int) -> None:
        self._idle.pop(block, None)
        super().hold(block)

    def take(self) -> int:
        if self._free:
            return super().take()
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._prefix_of.pop(block).hash]
        return block

    def put_back(self, block: int) -> None:
        if block in self._prefix_of:
            self._idle[block] = None
        else:
            super().put_back(block)
