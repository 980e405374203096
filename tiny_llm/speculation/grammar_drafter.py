"""Drafts that keep to their grammars, and forced tokens as drafts."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from ..structured.step_masks import constraint_of
from .drafter import Drafter, Drafts


class GrammarDrafter:
    """Propose forced tokens where there are any, and the allowed drafts of another drafter elsewhere.

    Args:
        drafter: another source of drafts.

    Attributes:
        forced: the forced tokens that the last call of `wanted` found, by sequence id. A sequence without any
            has no entry.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.forced: dict[int, list[int]] = {}

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Rest when the other drafter does, unless a grammar forces a token that is to be computed next."""
        is_resting = self.drafter.rests(sequences)
        decoding = [constraint_of(each) for each in sequences if each.num_uncomputed_tokens == 1]
        return is_resting and not any(each is not None and each.forced_tokens() for each in decoding)

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Return the number of forced tokens where there are any, and the other drafter's number elsewhere.

        The other drafter is always asked about all entries. Its answer is not changed.
        """
        raise NotImplementedError("week 3 day 8 task 6: GrammarDrafter.wanted is not written yet")

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Return at most as many drafts as are granted: forced tokens, or the other drafter's.

        The other drafter is called in every step, and granted only what goes to sequences without forced
        tokens. What it returns is not changed.

        Its drafts without probabilities are cut before the first that the sequence's grammar forbids. The
        tokens that are forced after the remaining drafts follow, as far as granted, even if no draft was cut.
        Its drafts with probabilities stay as they are, since rejecting a forbidden draft is part of sampling
        exactly.
        """
        raise NotImplementedError("week 3 day 8 task 6: GrammarDrafter.propose is not written yet")

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self.forced.pop(sequence_id, None)
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()
