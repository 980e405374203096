"""Drafts from a sequence's own tokens: what followed the last time it ended like this."""

from collections.abc import Iterable

Ngram = tuple[int, ...]


class PromptLookup:
    """An index of one sequence's n-grams, for drafts that repeat what came after the same tokens before.

    Adding a token costs the same however long the sequence is.

    Args:
        min_n, max_n: lengths of the n-grams, at least 1; longer ones are tried first.

    Raises:
        ValueError: `min_n` is below 1, or above `max_n`.

    Attributes:
        token_ids: the tokens added so far.
        follower: for each n-gram that has a token after it, the position of the token after its latest
            occurrence.

    Source: Saxena, "Prompt lookup decoding", 2023.
    """

    token_ids: list[int]
    follower: dict[Ngram, int]

    def __init__(self, min_n: int = 2, max_n: int = 4) -> None:
        raise NotImplementedError("week 3 day 6 task 1: PromptLookup.__init__ is not written yet")

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens at the end. Each is now the follower of the n-grams that end before it."""
        raise NotImplementedError("week 3 day 6 task 1: PromptLookup.extend is not written yet")

    def propose(self, num_drafts: int) -> list[int]:
        """Guess the next tokens: those that followed the longest n-gram which also ends the sequence.

        If they reach the end of the sequence, it is repeating itself, and so the drafts go on with the drafts
        themselves.

        Args:
            num_drafts: number of tokens to guess.

        Returns:
            `num_drafts` tokens; none if no n-gram at the end has occurred before.
        """
        raise NotImplementedError("week 3 day 6 task 1: PromptLookup.propose is not written yet")
