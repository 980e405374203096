"""How often a sequence holds each of its tokens, kept from step to step."""

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..sequence import Sequence

Ints = npt.NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of a sequence, and how often its answer holds each.

    Tokens are only ever added to a sequence: one that is preempted keeps them, and an overlapped step waits
    for those that penalties count. So a step looks only at the tokens that came since the last one.
    """

    def __init__(self) -> None:
        self._num_counted = 0
        self._place_of: dict[int, int] = {}
        self._ids = self._counts = np.empty(0, np.int64)

    def after(self, sequence: Sequence) -> tuple[Ints, Ints]:
        """Count the new tokens of a sequence, always the same one.

        Returns:
            ids, counts: [N] each, of its distinct tokens; valid until the next call.
        """
        for position in range(self._num_counted, sequence.num_tokens):
            place = self._find_place(sequence.token_ids[position])
            self._counts[place] += position >= sequence.num_prompt_tokens
        self._num_counted = sequence.num_tokens
        num_distinct = len(self._place_of)
        return self._ids[:num_distinct], self._counts[:num_distinct]

    def _find_place(self, token: int) -> int:
        place = self._place_of.setdefault(token, len(self._place_of))
        if place == len(self._ids):
            room = np.zeros(max(64, place), np.int64)
            self._ids, self._counts = np.append(self._ids, room), np.append(self._counts, room)
        self._ids[place] = token
        return place


_known: WeakKeyDictionary[Sequence, TokenCounts] = WeakKeyDictionary()


def counts_of(sequence: Sequence) -> tuple[Ints, Ints]:
    """`TokenCounts.after` of the counts that are kept as long as the sequence is."""
    return _known.setdefault(sequence, TokenCounts()).after(sequence)
