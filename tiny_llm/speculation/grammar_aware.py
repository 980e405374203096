"""A drafter that keeps to grammars, in the steps in which a request has one."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from ..structured.step_masks import constraint_of
from .drafter import Drafter, Drafts
from .grammar_drafter import GrammarDrafter


class GrammarAwareDrafter:
    """Ask a drafter directly, or through a `GrammarDrafter` if a sequence has a grammar.

    Without grammars, day 3.6 therefore needs nothing from day 3.8.

    Args:
        drafter: where drafts come from.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._with_grammars = GrammarDrafter(drafter)

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Whether the next step may go without drafts."""
        return self._for(sequences).rests(sequences)

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts that would be useful after each entry."""
        return self._for(entry.sequence for entry in entries).wanted(entries)

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Guess the tokens that follow final entries, those that `wanted` was asked about."""
        return self._for(entry.sequence for entry in output.final).propose(output, granted, params)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._with_grammars.release(sequence_id)

    def close(self) -> None:
        """Release everything."""
        self._with_grammars.close()

    def _for(self, sequences: Iterable[Sequence]) -> Drafter:
        has_grammar = any(constraint_of(sequence) is not None for sequence in sequences)
        return self._with_grammars if has_grammar else self.drafter
