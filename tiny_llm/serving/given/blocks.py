"""Room for keys and values, as the scheduler sees it."""

from typing import Protocol

from ..sequence import Sequence


class Blocks(Protocol):
    """Where the keys and values of sequences are held, counted in tokens and without the numbers themselves.

    All or nothing: a call that cannot be met changes nothing. What a sequence holds stays its own until
    `free`, whatever others ask for.
    """

    def check_fits(self, sequence: Sequence) -> None:
        """Raise ValueError, with the numbers, for one that could not run even if it were alone."""

    def find_prefix(self, sequence: Sequence) -> int:
        """How many of its first tokens are held already, computed by somebody before: fewer than all of them.

        Changes nothing. Asked only of a sequence that holds nothing.
        """

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for that many tokens behind those that are computed; False if there is none.

        The first call for a sequence admits it: what `find_prefix` found is then held for it as well, and
        more room may be asked for than the tokens need, so that those who run can grow. Every later step of
        a sequence asks again: with room to spare, that is quick.
        """

    def free(self, sequence: Sequence) -> None:
        """Give back all that it holds."""


class UnlimitedBlocks:
    """Room for everything, and nothing shared: each sequence has a cache of its own that grows."""

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
