"""What a step computes, as the scheduler says it to those who compute it."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..sequence import Sequence


class ScheduledTokens(NamedTuple):
    """Tokens `start` to `end` of one sequence, computed in a step; `is_final` if one is sampled after them.

    A tuple: a step makes one for each sequence that runs, and a frozen dataclass takes longer to make.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    is_final: bool

    @property
    def end(self) -> int:
        """How many of its tokens are computed after the step."""
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether they belong to the prompt; what was generated is decoded."""
        return self.start < self.sequence.num_prompt_tokens

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        return self.sequence.token_ids[self.start : self.end]


@dataclass(frozen=True)
class SchedulerOutput:
    """All that a step computes, one entry a sequence: those that ran before it first, in their order."""

    entries: tuple[ScheduledTokens, ...]

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(entry.num_tokens for entry in self.entries)

    @cached_property
    def final(self) -> tuple[ScheduledTokens, ...]:
        """The entries after which a token is sampled."""
        return tuple([entry for entry in self.entries if entry.is_final])

    @cached_property
    def final_ids(self) -> frozenset[int]:
        """The ids of the sequences that a token is sampled for."""
        return frozenset([entry.sequence.id for entry in self.entries if entry.is_final])
