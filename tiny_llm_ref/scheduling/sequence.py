"""One request as the scheduler sees it: numbers, without model, clock or text."""

from collections.abc import Iterable


class Sequence:
    """A request's tokens, and how many of them have been computed.

    Scheduling means letting the second number catch up with the first. A token is computed when its keys and
    values are. The prompt's tokens exist from the start, and a generated token as soon as it is sampled. So a
    sequence in prefill is many tokens behind, and a decoding sequence is one behind.

    Args:
        id: the caller's number for it, unique within a scheduler.
        prompt_ids: at least one token; the list is copied.
        priority: for the policies of day 3.5; a smaller number is more urgent.
        max_num_tokens: largest number of tokens it may reach, prompt and answer together, so that blocks can
            be reserved; by default, the length of the prompt.

    Attributes:
        token_ids: the prompt, then the generated tokens.
        num_prompt_tokens: number of tokens in the prompt.
        num_computed_tokens: number of leading tokens that have been computed.
        arrival: number of sequences that were added to the scheduler before it. 0 until `Scheduler.add` sets
            it; preemption doesn't change it.
        num_preemptions: how often it was preempted; counted by the scheduler.

    Raises:
        ValueError: the prompt of sequence `id` is empty; or its `num_prompt_tokens` exceed `max_num_tokens`.
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
            raise ValueError(f"sequence {id} has an empty prompt: give at least one token")
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens if max_num_tokens is None else max_num_tokens
        if self.max_num_tokens < self.num_prompt_tokens:
            raise ValueError(
                f"sequence {id} has {self.num_prompt_tokens} prompt tokens, but max_num_tokens is "
                f"{self.max_num_tokens}: shorten the prompt or raise max_num_tokens"
            )
        self.num_computed_tokens = 0
        self.arrival = 0
        self.priority = priority
        self.num_preemptions = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens, computed or not."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of tokens still to compute; never 0, since the newest token has not been computed."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt has not been computed."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def generated_ids(self) -> list[int]:
        """The tokens sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]
