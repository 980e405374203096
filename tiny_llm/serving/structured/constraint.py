"""A request's place in its grammar."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from llguidance import LLMatcher


class Constraint:
    """How far an answer has come in its grammar, and what may follow.

    The matcher reads tokens, not text, and it can go back. It never raises an error: its methods return how
    far they came, and once it is in an error state, it stays there. End-of-text ids are not part of an
    answer, so the matcher never gets them: it would count some of them as tokens, and others not.

    Args:
        matcher: at the start of the grammar.
        end_ids: the end-of-text ids.
        vocab_size: number of tokens that the matcher knows; the model may have more.

    Attributes:
        num_tokens: number of tokens that the matcher has read.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Iterable[int], vocab_size: int) -> None:
        self.matcher = matcher
        self.end_ids = frozenset(end_ids)
        self.vocab_size = vocab_size
        self.num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return self.matcher.is_accepting()

    def advance(self, token_ids: Items[int]) -> None:
        """Read tokens that the answer has gained.

        Raises:
            ValueError: the grammar forbids one of the tokens, or it is an end-of-text id. Shows the `token`
                and its `place` in the answer. The matcher has read none of the tokens then.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.advance is not written yet")

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens that were read.

        Raises:
            ValueError: `num_tokens` is negative or exceeds the number of tokens read. Nothing changes then.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.rollback is not written yet")

    def allowed_prefix(self, draft_ids: Items[int]) -> list[int]:
        """Return the drafts before the first one that the grammar forbids or that is an end-of-text id.

        Nothing changes.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.allowed_prefix is not written yet")

    def forced_tokens(self) -> list[int]:
        """Return the tokens that spell what the grammar leaves no choice about; empty where it does.

        Where there are any, the mask allows only the first of them, although others may spell the same text.
        Nothing changes.
        """
        raise NotImplementedError("week 3 day 8 task 6: Constraint.forced_tokens is not written yet")
