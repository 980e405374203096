"""Prefixes in full blocks: what a block holds, said by its own tokens and all those before it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from .sequence import Sequence

Hash = Callable[[int, tuple[int, ...]], int]
"""From the hash of the blocks before, and a block's tokens, to the hash of all of them."""
NO_PARENT = 0
"""What stands for the hash of the blocks before the first one."""


def chain_hash(parent: int, token_ids: tuple[int, ...]) -> int:
    """Python's hash of both, which of integers is the same in every process."""
    return hash((parent, token_ids))


@dataclass(frozen=True, eq=False)
class Prefix:
    """The tokens of a full block, and all those before it.

    Two are equal if they are the same object, and `Prefixes` makes the same tokens the same object. So one
    comparison, or one look in a dict, is about all tokens from the first on.

    Attributes:
        parent: the blocks before; None for a first block.
        token_ids: the block's own tokens.
        hash: of all tokens from the first on; others may have the same.
    """

    parent: "Prefix | None"
    token_ids: tuple[int, ...]
    hash: int


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Every prefix that somebody refers to, once; it is forgotten when nobody does any more.

    Args:
        block_size: tokens of a block.
        hash_function: equal tokens must have equal hashes. Others may too: a collision costs a hit and is
            never taken for one.

    Attributes:
        known: prefixes by their hash.
        chains: the prefixes of each sequence that was asked for.
    """

    block_size: int
    hash_function: Hash = chain_hash
    known: WeakValueDictionary[int, Prefix] = field(default_factory=WeakValueDictionary)
    chains: WeakKeyDictionary[Sequence, list[Prefix]] = field(default_factory=WeakKeyDictionary)

    def child(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        """The prefix that is one block longer than `parent`: the one that is known, or a new one.

        Of two that collide the first is known, as long as somebody refers to it; the second is a new object
        whenever it is asked for, so that nobody shares it.
        """
        value = self.hash_function(NO_PARENT if parent is None else parent.hash, token_ids)
        known = self.known.get(value)
        if known is not None and known.parent is parent and known.token_ids == token_ids:
            return known
        new = Prefix(parent, token_ids, value)
        if known is None:
            self.known[value] = new
        return new

    def of(self, sequence: Sequence) -> list[Prefix]:
        """Those of all its full blocks, shortest first, computed or not; the caller leaves the list as it is.

        Each is made once, however often it is asked for: tokens are only ever appended.
        """
        chain = self.chains.setdefault(sequence, [])
        while (end := (len(chain) + 1) * self.block_size) <= sequence.num_tokens:
            parent = chain[-1] if chain else None
            chain.append(self.child(parent, tuple(sequence.token_ids[end - self.block_size : end])))
        return chain
