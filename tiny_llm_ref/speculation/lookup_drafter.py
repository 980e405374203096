"""Drafts by prompt lookup, for all sequences of an engine."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from kernel_runtime.limits import check_integer

from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from .drafter import Drafts
from .prompt_lookup import PromptLookup


class LookupDrafter:
    """Guess that each sequence repeats itself.

    Args:
        num_drafts: largest number of drafts of a sequence in a step, at least 0.
        min_n, max_n: as for `PromptLookup`.

    Raises:
        ValueError: one of the three is not an integer; `num_drafts` is negative, `min_n` below 1, or `max_n`
            below `min_n`.
    """

    def __init__(self, num_drafts: int = 8, min_n: int = 2, max_n: int = 4) -> None:
        check_integer("num_drafts", num_drafts, 0)
        check_integer("min_n", min_n, 1)
        check_integer("max_n", max_n, min_n)
        self.num_drafts = num_drafts
        self.min_n = min_n
        self.max_n = max_n
        self.indexes: dict[int, PromptLookup] = {}
        self._found: dict[int, list[int]] = {}

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Never rest."""
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts found for each sequence."""
        self._found = {entry.sequence.id: self._look_up(entry.sequence) for entry in entries}
        return {id: len(drafts) for id, drafts in self._found.items()}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return the first of the drafts found, as many as are granted."""
        return Drafts({id: self._found[id][:number] for id, number in granted.items()})

    def release(self, sequence_id: int) -> None:
        """Drop the sequence's index."""
        self.indexes.pop(sequence_id, None)

    def close(self) -> None:
        """Drop all indexes."""
        self.indexes.clear()

    def _look_up(self, sequence: Sequence) -> list[int]:
        index = self.indexes.setdefault(sequence.id, PromptLookup(self.min_n, self.max_n))
        index.extend(sequence.token_ids[len(index.token_ids) :])
        return index.propose(self.num_drafts)
