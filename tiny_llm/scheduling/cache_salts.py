"""Prefixes apart for each salt, so that no one learns from a cache hit what others have sent."""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from .block_hashes import Prefix, Prefixes, chain_hash
from .sequence import Sequence

_salts: WeakKeyDictionary[Sequence, str] = WeakKeyDictionary()


def salt_sequence(sequence: Sequence, salt: str) -> None:
    """Let a sequence share blocks only with those of the same salt."""
    _salts[sequence] = salt


@dataclass(frozen=True, eq=False)
class Salt(Prefix):
    """A prefix without tokens, which stands for a salt.

    Attributes:
        salt: as the request gave it.
    """

    salt: str


@dataclass(frozen=True, eq=False)
class SaltedPrefixes(Prefixes):
    """`Prefixes` in which the first block of a salted sequence has a parent, which stands for the salt.

    Attributes:
        salts: the prefixes that stand for salts. They are forgotten together with the last longer ones.
    """

    salts: WeakValueDictionary[str, Salt] = field(default_factory=WeakValueDictionary)
    _parents: list[Prefix] = field(default_factory=list)

    def of(self, sequence: Sequence) -> list[Prefix]:
        """Do what `Prefixes` does, below the prefix of the sequence's salt, if it has one."""
        salt = _salts.get(sequence)
        if salt is None:
            return super().of(sequence)
        value = chain_hash(0, tuple(salt.encode()))
        self._parents.append(self.salts.setdefault(salt, Salt(None, (), value, salt)))
        try:
            return super().of(sequence)
        finally:
            self._parents.pop()

    def child(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        """Do what `Prefixes` does; a first block has the salt of the sequence that `of` looks at."""
        if parent is None and self._parents:
            parent = self._parents[-1]
        return super().child(parent, token_ids)
