"""One request as the scheduler sees it: numbers, and no model, clock or text."""

from collections.abc import Iterable


class Sequence:
    """Tokens that are there, and how many of them are computed. Scheduling is the catching up of the second.

    A token is computed when its keys and values are. The prompt's tokens are there from the start, a
    generated one as soon as it is sampled; so a sequence in prefill is far behind, one that decodes by one.

    Args:
        id: the caller's number for it, which no other sequence of a scheduler has.
        prompt_ids: at least one token; the list is copied.
        priority: for the policies of day 3.5; a smaller number is more urgent.
        max_num_tokens: most tokens it may come to have, prompt and answer together, for those who hold its
            keys and values; the prompt's number unless given.

    Attributes:
        token_ids: the prompt, then what was generated.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many of them, from the first on, are computed.
        arrival: its place in the order in which the scheduler took them on; the scheduler sets it.
        num_preemptions: how often it lost what was computed; the scheduler counts.

    Raises:
        ValueError: the prompt of sequence `id` is empty, or has more tokens, `num_prompt_tokens`, than
            `max_num_tokens`.
    """

    id: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    arrival: int
    priority: int
    max_num_tokens: int
    num_preemptions: int

    def __init__(
        self, id: int, prompt_ids: Iterable[int], priority: int = 0, max_num_tokens: int | None = None
    ) -> None:
        self.id = id
        self.token_ids = list(prompt_ids)
        if not self.token_ids:
            raise ValueError(f"sequence {id} has no token: a prompt needs at least one")
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens if max_num_tokens is None else max_num_tokens
        if self.max_num_tokens < self.num_prompt_tokens:
            raise ValueError(
                f"sequence {id} has {self.num_prompt_tokens} tokens and may come to have "
                f"{self.max_num_tokens}: shorten the prompt or raise max_num_tokens"
            )
        self.num_computed_tokens = 0
        self.arrival = 0
        self.priority = priority
        self.num_preemptions = 0

    @property
    def num_tokens(self) -> int:
        """All tokens that are there, computed or not."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """How far it is behind; never 0 while it runs, since the newest token is not computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether a part of the prompt is not computed."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def generated_ids(self) -> list[int]:
        """What was sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]
