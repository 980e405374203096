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
        if not 1 <= min_n <= max_n:
            raise ValueError(f"min_n must be from 1 to max_n, got min_n {min_n} and max_n {max_n}")
        self.min_n = min_n
        self.max_n = max_n
        self.token_ids = []
        self.follower = {}

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens at the end. Each is now the follower of the n-grams that end before it."""
        for token in token_ids:
            position = len(self.token_ids)
            for n in range(self.min_n, min(self.max_n, position) + 1):
                self.follower[tuple(self.token_ids[-n:])] = position
            self.token_ids.append(token)

    def propose(self, num_drafts: int) -> list[int]:
        """Guess the next tokens: those that followed the longest n-gram which also ends the sequence.

        If they reach the end of the sequence, it is repeating itself, and so the drafts go on with the drafts
        themselves.

        Args:
            num_drafts: number of tokens to guess.

        Returns:
            `num_drafts` tokens; none if no n-gram at the end has occurred before.
        """
        position = self._find_follower()
        if position is None:
            return []
        tokens = self.token_ids[position : position + num_drafts]
        period = len(self.token_ids) - position
        while len(tokens) < num_drafts:
            tokens.append(tokens[-period])
        return tokens

    def _find_follower(self) -> int | None:
        for n in range(min(self.max_n, len(self.token_ids)), self.min_n - 1, -1):
            position = self.follower.get(tuple(self.token_ids[-n:]))
            if position is not None:
                return position
        return None
