"""Room for keys and values, as the scheduler sees it."""

from typing import Protocol
from weakref import WeakKeyDictionary

from .sequence import Sequence


class Blocks(Protocol):
    """Counts the room that sequences' keys and values take, in tokens; the arrays themselves live elsewhere.

    A call that cannot be granted in full changes nothing. A sequence keeps what it holds until `free`.
    """

    def check_fits(self, sequence: Sequence) -> None:
        """Raise ValueError, with the numbers, for a sequence that could not run even alone."""

    def may_admit(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence might be admitted, before its prefix is looked up."""

    def find_prefix(self, sequence: Sequence) -> int:
        """Number of leading tokens that are already stored, computed by other sequences; never all of them.

        Changes nothing. Called only for a sequence that holds nothing.
        """

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` after the computed ones; return whether there is room.

        The first call for a sequence admits it. It then also holds the tokens that `find_prefix` found.
        Admission may require more room than these tokens need, so that running sequences can grow. The
        scheduler calls this for every running sequence in every step, so a call must be quick if there is
        room already.
        """

    def room_for_drafts(self, sequence: Sequence, num_tokens: int) -> int:
        """Number of drafts that can be stored after `num_tokens` more tokens, at no other sequence's cost."""

    def shrink(self, sequence: Sequence) -> None:
        """Give back what a sequence holds beyond its computed tokens."""

    def free(self, sequence: Sequence) -> None:
        """Give back everything that a sequence holds."""


class UnlimitedBlocks:
    """Room for everything and nothing shared: each sequence has its own growing cache.

    A preempted sequence keeps its cache, and continues where it stopped.
    """

    def __init__(self) -> None:
        self._num_stored: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    def check_fits(self, sequence: Sequence) -> None:
        """Every sequence fits. It is new here, so nothing of it is stored."""
        self._num_stored.pop(sequence, None)

    def may_admit(self, sequence: Sequence) -> bool:
        """There is always room."""
        return True

    def find_prefix(self, sequence: Sequence) -> int:
        """Number of tokens that were stored when the sequence was preempted."""
        return self._num_stored.get(sequence, 0)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """There is always room."""
        return True

    def room_for_drafts(self, sequence: Sequence, num_tokens: int) -> int:
        """There is room for all that the sequence may ever need."""
        return sequence.max_num_tokens

    def shrink(self, sequence: Sequence) -> None:
        """There is nothing to give back."""

    def free(self, sequence: Sequence) -> None:
        """There is nothing to give back: the sequence was preempted, or it has left."""
        self._num_stored[sequence] = sequence.num_computed_tokens
