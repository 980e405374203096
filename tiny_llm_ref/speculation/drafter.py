"""Where drafts come from, as the engine sees it."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from ..scheduling.sequence import Sequence
from ..structured.step_masks import share_constraint


@dataclass(frozen=True)
class Drafts:
    """The drafts of a step, by sequence id.

    Attributes:
        token_ids: k drafts for each sequence that has any.
        probs: [k, V], the distributions that the drafts were drawn from. A sequence without an entry was
            drafted without chance: each of its distributions is 1 at the draft.
    """

    token_ids: Mapping[int, Items[int]] = field(default_factory=dict)
    probs: Mapping[int, mx.array] = field(default_factory=dict)


def extended(sequence: Sequence, draft_ids: Items[int]) -> Sequence:
    """Return a copy of a sequence with drafts appended, as if they had been accepted."""
    longer = copy(sequence)
    longer.token_ids = [*sequence.token_ids, *draft_ids]
    share_constraint(sequence, longer)
    return longer


class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    def rests(self, sequences: Items[Sequence]) -> bool:
        """Whether the next step may go without drafts. Called once before each step.

        If a grammar forces tokens, the step asks for drafts all the same. Then propose none.

        Args:
            sequences: those that run. Those that wait may be many.
        """

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        """Number of drafts that would be useful after each of a step's final entries, by sequence id."""

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        """Guess the tokens that follow some final entries. Called in every step, even if nothing is granted.

        Args:
            output: the step, without drafts.
            granted: number of drafts for each sequence that gets any, at most the number that was wanted.
            params: how each sequence with a final entry is sampled.
        """

    def release(self, sequence_id: int) -> None:
        """Forget a sequence, if it is known: its request has ended."""

    def close(self) -> None:
        """Release everything."""
