"""Events: what a prefix cache holds, for those who see it only from far away."""

from collections.abc import Iterable
from dataclasses import dataclass

from .block_hashes import Prefix
from .content_hashes import ContentHashes, parent_and_salt, short_hash


@dataclass(frozen=True)
class BlockStored:
    """A block is in the cache.

    Attributes:
        block_hash: of its tokens and all tokens before it.
        parent_block_hash: of the tokens before it; None for a first block.
        token_ids: its own tokens.
        cache_salt: the salt of a first block; None if it has none, and for all other blocks.
    """

    block_hash: int
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    cache_salt: str | None = None


@dataclass(frozen=True)
class BlockRemoved:
    """A block is no longer in the cache."""

    block_hash: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """The cache is empty."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class CacheEvents:
    """A `CacheObserver` that collects events until they are taken, at the end of each step.

    A step may store a block and then fail. The cache of the next engine is empty, and says so: only that
    counts then, whatever happened to the cache before it.

    Args:
        seed: as for `ContentHashes`.
    """

    def __init__(self, seed: str = "0") -> None:
        self.hashes = ContentHashes(seed)
        self._events: list[CacheEvent] = []

    def stored(self, prefix: Prefix, block: int) -> None:
        """Add an event for the last block of a prefix. The block's number means nothing elsewhere."""
        raise NotImplementedError("week 4 day 4 task 1: CacheEvents.stored is not written yet")

    def removed(self, prefix: Prefix, block: int) -> None:
        """Add an event that takes back the one of `stored`."""
        raise NotImplementedError("week 4 day 4 task 1: CacheEvents.removed is not written yet")

    def cleared(self) -> None:
        """Replace all events by one that says that no block is left."""
        raise NotImplementedError("week 4 day 4 task 1: CacheEvents.cleared is not written yet")

    def take(self) -> list[CacheEvent]:
        """Return the events since the last call, in order."""
        raise NotImplementedError("week 4 day 4 task 1: CacheEvents.take is not written yet")

    def event_of(self, prefix: Prefix) -> BlockStored:
        """The event that says that the last block of a prefix is in the cache."""
        parent, salt = parent_and_salt(prefix)
        before = None if parent is None else short_hash(self.hashes.of(parent))
        return BlockStored(short_hash(self.hashes.of(prefix)), before, prefix.token_ids, salt)


class CacheContents:
    """What a cache holds, as far as its events tell.

    Attributes:
        blocks: for each block in the cache, the event that stored it, by the block's hash.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, BlockStored] = {}

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Follow the cache through further events."""
        raise NotImplementedError("week 4 day 4 task 2: CacheContents.apply is not written yet")

    def as_events(self) -> list[CacheEvent]:
        """The shortest events that lead here from any state. A block comes after the one before it."""
        raise NotImplementedError("week 4 day 4 task 2: CacheContents.as_events is not written yet")
