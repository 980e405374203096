"""Room for keys and values, as the scheduler sees it."""

from typing import Protocol

from ..sequence import Sequence


class Blocks(Protocol):
    """Counts the room that sequences' keys and values take, in tokens; the arrays themselves live elsewhere.

    A call that cannot be granted in full changes nothing. A sequence keeps what it holds until `free`.
    """

    def check_fits(self, sequence: Sequence) -> None:
        """Raise ValueError, with the numbers, for a sequence that could not run even alone."""

    def find_prefix(self, sequence: Sequence) -> int:
        """Number of leading tokens that are held already, computed by other sequences: never all of them.

        Changes nothing. Asked only of a sequence that holds nothing.
        """

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` behind those that are computed; False if there is none.

        The first call for a sequence admits it: it then also holds what `find_prefix` found, and more room
        may be required than its tokens need, so that running sequences can grow. The scheduler calls this
        for every running sequence in every step, so a call with room to spare must be quick.
        """

    def free(self, sequence: Sequence) -> None:
        """Give back everything that a sequence holds."""


class UnlimitedBlocks:
    """Room for everything and nothing shared: each sequence has its own growing cache."""

    def check_fits(self, sequence: Sequence) -> None:
        """Every sequence fits."""

    def find_prefix(self, sequence: Sequence) -> int:
        """Nothing is shared."""
        return 0

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """There is always room."""
        return True

    def free(self, sequence: Sequence) -> None:
        """There is nothing to give back."""
