"""A request's place in its grammar."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from llguidance import LLMatcher


class Constraint:
    """How far an answer has come in its grammar, and what may follow.

    The matcher reads tokens, not text, and it can go back. It never raises an error: its methods return how
    far they came, and once it is in its error state, it stays there and allows nothing but the end.

    Two kinds of ids must never reach it. It counts an end-of-text id as a token or not, depending on the
    grammar. And an id that it doesn't know, `vocab_size` or more, puts it in its error state, even if it is
    only asked whether the id may come.

    Args:
        matcher: at the start of the grammar.
        end_ids: the end-of-text ids.
        vocab_size: number of tokens that the matcher knows. The model may have more, and a prompt may contain
            them.

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
            ValueError: one of the tokens is forbidden by the grammar, an end-of-text id, or unknown to the
                matcher. Shows the first such `token` and its `place` in the answer, counted from 0. The
                matcher has read none of the tokens then.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.advance is not written yet")

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens that were read.

        Raises:
            ValueError: `num_tokens` is negative or exceeds the number of tokens read. Nothing changes then.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.rollback is not written yet")

    def readable_prefix(self, draft_ids: Items[int]) -> list[int]:
        """Return the drafts before the first one that must not reach the matcher.

        That is an end-of-text id or an id that the matcher doesn't know. The grammar is not asked.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.readable_prefix is not written yet")

    def allowed_prefix(self, draft_ids: Items[int]) -> list[int]:
        """Return the readable drafts before the first one that the grammar forbids.

        Nothing changes.
        """
        raise NotImplementedError("week 3 day 8 task 1: Constraint.allowed_prefix is not written yet")

    def forced_tokens(self) -> list[int]:
        """Return the tokens that spell the text that must come next; an empty list if there is a choice.

        If any token is forced, the mask allows only the first of them, even where another token spells the
        same text. Nothing changes.
        """
        raise NotImplementedError("week 3 day 8 task 6: Constraint.forced_tokens is not written yet")
