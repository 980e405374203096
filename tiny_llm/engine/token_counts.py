"""Counts how often each token occurs in a sequence, and keeps the counts from step to step."""

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..scheduling.sequence import Sequence

Ints = npt.NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of a sequence, and how often each occurs in its answer.

    A sequence only ever gains tokens: preemption keeps them, and an overlapped step waits for the tokens that
    penalties count. So each step counts only the tokens that are new since the last one.
    """

    def __init__(self) -> None:
        self._num_counted = 0
        self._place_of: dict[int, int] = {}
        self._ids = self._counts = np.empty(0, np.int64)

    def after(self, sequence: Sequence) -> tuple[Ints, Ints]:
        """Count the new tokens of a sequence, which must be the same in every call.

        Returns:
            ids, counts: [N] each, for its distinct tokens; valid until the next call.
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
    """Call `TokenCounts.after` on counts that live as long as the sequence."""
    return _known.setdefault(sequence, TokenCounts()).after(sequence)
