"""Prefixes made of full blocks: a block's content is identified by its own tokens and all those before it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from .sequence import Sequence

Hash = Callable[[int, tuple[int, ...]], int]
"""Maps the hash of the preceding blocks and a block's tokens to the hash of all of them."""


def chain_hash(parent: int, token_ids: tuple[int, ...]) -> int:
    """Hash both with Python's hash, which is the same in every process for integers."""
    return hash((parent, token_ids))


@dataclass(frozen=True, eq=False)
class Prefix:
    """The tokens of a full block and all tokens before it.

    Two prefixes are equal only if they are the same object. `Prefixes` returns the same object for the same
    tokens. So a single comparison or dict lookup covers all tokens from the first one on.

    Attributes:
        parent: the prefix that ends before this block; None for a first block.
        token_ids: the block's own tokens.
        hash: of all tokens from the first one on. Different prefixes may have the same hash.
    """

    parent: "Prefix | None"
    token_ids: tuple[int, ...]
    hash: int


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Keeps one object for every prefix in use, and forgets a prefix once nothing refers to it.

    Args:
        block_size: tokens per block.
        hash_function: must return equal hashes for equal tokens. Different tokens may collide. A collision
            costs a cache hit, but never produces a false one.

    Attributes:
        known: prefixes by hash.
        chains: for each sequence seen by `of`, the prefixes of its full blocks.
    """

    block_size: int
    hash_function: Hash = chain_hash
    known: WeakValueDictionary[int, Prefix] = field(default_factory=WeakValueDictionary)
    chains: WeakKeyDictionary[Sequence, list[Prefix]] = field(default_factory=WeakKeyDictionary)

    def child(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        """Return the prefix that is one block longer than `parent`: the known object, or a new one.

        If two prefixes collide, the first stays known for as long as something refers to it. The second is a
        new object every time, so it is never shared.
        """
        raise NotImplementedError("week 3 day 4 task 1: Prefixes.child is not written yet")

    def of(self, sequence: Sequence) -> list[Prefix]:
        """Prefixes of all full blocks of a sequence, computed or not, shortest first. Don't modify the list.

        Each prefix is made only once, however often this is called, since tokens are only ever appended.
        """
        raise NotImplementedError("week 3 day 4 task 1: Prefixes.of is not written yet")

    def cut(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget the prefixes of a sequence that reach beyond its first `num_tokens` tokens."""
        del self.chains.get(sequence, [])[num_tokens // self.block_size :]
