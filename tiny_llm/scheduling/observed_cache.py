"""Tell others what the prefix cache holds, whenever that changes."""

from collections import UserDict
from collections.abc import MutableMapping
from typing import Protocol

from .block_hashes import Prefix
from .prefix_cache import PrefixCachingBlockManager


class CacheObserver(Protocol):
    """What is told of every change to a prefix cache, in the thread of the engine: don't wait here.

    A block is in the cache from the moment a step is scheduled that fills it. If that step fails, or never
    runs, the block is removed again, while the table of its sequence still contains it. A block that is
    evicted is in no table, so its `ref_counts` entry is 0. It holds the prefix's keys and values until the
    next step runs.
    """

    def stored(self, prefix: Prefix, block: int) -> None:
        """From now on, sequences that begin with this prefix find its last part in `block`."""

    def removed(self, prefix: Prefix, block: int) -> None:
        """From now on, the prefix is not found; `block` held its last part."""

    def cleared(self) -> None:
        """From now on, no prefix is found."""


class ObservedBlocks(UserDict[Prefix, int]):
    """The map from prefixes to blocks of a prefix cache, which tells an observer of each change.

    Args:
        blocks: the map to observe. It is changed too.
        observer: is told of each change after it.
    """

    def __init__(self, blocks: MutableMapping[Prefix, int], observer: CacheObserver) -> None:
        self.data = blocks  # type: ignore[assignment]  # UserDict asks for no more than a mapping
        self.observer = observer

    def __setitem__(self, prefix: Prefix, block: int) -> None:
        is_new = prefix not in self.data
        self.data[prefix] = block
        if is_new:
            self.observer.stored(prefix, block)

    def __delitem__(self, prefix: Prefix) -> None:
        self.observer.removed(prefix, self.data.pop(prefix))

    def clear(self) -> None:
        """Remove all prefixes at once."""
        self.data.clear()
        self.observer.cleared()


def observe(blocks: PrefixCachingBlockManager, observer: CacheObserver) -> None:
    """Tell an observer what the prefix cache holds, and of every change. There may be several observers."""
    observer.cleared()
    for prefix, block in blocks.block_of.items():
        observer.stored(prefix, block)
    blocks.block_of = ObservedBlocks(blocks.block_of, observer)
