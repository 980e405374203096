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
        self.forced = {}
        for entry in entries:
            constraint = constraint_of(entry.sequence)
            if constraint is not None and (forced := constraint.forced_tokens()):
                self.forced[entry.sequence.id] = forced
        forced_numbers = {id: len(tokens) for id, tokens in self.forced.items()}
        return self.drafter.wanted(entries) | forced_numbers

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
        others = {id: number for id, number in granted.items() if id not in self.forced}
        drafts = self.drafter.propose(output, others, params)
        token_ids = dict(drafts.token_ids)
        for entry in output.final:
            id, constraint = entry.sequence.id, constraint_of(entry.sequence)
            if id in granted and id in self.forced:
                token_ids[id] = self.forced[id][: granted[id]]
            elif id in token_ids and id not in drafts.probs and constraint is not None:
                allowed = constraint.allowed_prefix(token_ids[id])
                constraint.advance(allowed)
                forced = constraint.forced_tokens()
                constraint.rollback(len(allowed))
                token_ids[id] = [*allowed, *forced][: granted[id]]
        return Drafts(token_ids, drafts.probs)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self.forced.pop(sequence_id, None)
        self.drafter.release(sequence_id)

    def close(self) -> None:
        """Close the other drafter."""
        self.drafter.close()
