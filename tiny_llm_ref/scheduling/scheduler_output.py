"""The output of the scheduler: the tokens that a step computes."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .sequence import Sequence


class ScheduledTokens(NamedTuple):
    """Tokens `start` to `end` of one sequence. If `is_final`, a token is sampled after them.

    With `draft_ids` (day 3.6), the last of these tokens are guesses that come after the sequence's own.

    This is a tuple because every step makes one per running sequence, and a frozen dataclass is slower.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    is_final: bool
    draft_ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Number of the sequence's tokens that are computed after the step, drafts included."""
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether the first of the tokens belongs to the prompt; generated tokens are decoded."""
        return self.start < self.sequence.num_prompt_tokens

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        return [*self.sequence.token_ids[self.start : self.end], *self.draft_ids]


@dataclass(frozen=True)
class SchedulerOutput:
    """Everything that a step computes, one entry per sequence. Sequences that already ran come first."""

    entries: tuple[ScheduledTokens, ...]

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in the whole step."""
        return sum(entry.num_tokens for entry in self.entries)

    @cached_property
    def final(self) -> tuple[ScheduledTokens, ...]:
        """The entries after which a token is sampled."""
        return tuple([entry for entry in self.entries if entry.is_final])

    @cached_property
    def final_ids(self) -> frozenset[int]:
        """The ids of the sequences for which a token is sampled."""
        return frozenset([entry.sequence.id for entry in self.entries if entry.is_final])

    def with_drafts(self, drafts: Mapping[int, Items[int]]) -> "SchedulerOutput":
        """Return the same step with drafts after the tokens of some sequences, by sequence id."""
        return SchedulerOutput(
            tuple([_with_drafts(entry, drafts.get(entry.sequence.id, ())) for entry in self.entries])
        )


def _with_drafts(entry: ScheduledTokens, draft_ids: Items[int]) -> ScheduledTokens:
    if not draft_ids:
        return entry
    return entry._replace(num_tokens=entry.num_tokens + len(draft_ids), draft_ids=tuple(draft_ids))
