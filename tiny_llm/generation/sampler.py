"""From log-probabilities to a token: greedy, or at random within bounds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from .given.request_params import RequestParams

Sampler = Callable[[mx.array], mx.array]
"""Log-probabilities [B, V] to token ids [B], each row on its own."""


@dataclass(frozen=True)
class SamplingParams(RequestParams):
    """How one request is sampled and when it ends. The first five are those of `make_sampler`.

    `max_tokens` bounds the tokens generated; generation also ends at any of the strings in `stop`, which
    is then not part of the text. The engine of week 3 adds what `RequestParams` has, which checks its own
    part in its `__post_init__`.

    Raises:
        ValueError: a value is out of its range; shows its `name` and the `value`.
    """

    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        raise NotImplementedError("week 1 day 7 task 3: SamplingParams.__post_init__ is not written yet")

    def make_sampler(self) -> Sampler:
        """A sampler of its own for a request: one that is seeded counts its draws."""
        raise NotImplementedError("week 1 day 7 task 3: SamplingParams.make_sampler is not written yet")


def make_sampler(
    temp: float, top_p: float = 0, top_k: int | None = None, min_p: float = 0, seed: int | None = None
) -> Sampler:
    """A sampler that draws from the model's distribution, cut to its likely part and tempered.

    The cuts look at the distribution as the model gives it; the temperature is applied to what they leave.
    A seeded sampler makes the same draws whatever else runs, so give each request one of its own.

    Args:
        temp: log-probabilities are divided by it; 0 takes the likeliest token.
        top_p: keep the fewest likeliest tokens that reach this probability together; 0 and 1 keep all.
        top_k: keep this many of the likeliest tokens.
        min_p: keep tokens at least this fraction as likely as the likeliest.
        seed: start of the sequence of draws; without one the draws differ from run to run.

    Returns:
        sampler: log-probabilities [B, V] -> token ids [B]

    Raises:
        ValueError: an argument is out of its range; shows its `name` and its `value`.
    """
    raise NotImplementedError("week 1 day 7 task 1: make_sampler is not written yet")


def keep_likely(logprobs: mx.array, top_p: float, top_k: int | None, min_p: float) -> mx.array:
    """Log-probabilities [B, V] with -inf for every token that one of the three cuts drops."""
    raise NotImplementedError("week 1 day 7 task 2: keep_likely is not written yet")


def token_id(sampled: mx.array) -> int:
    """The id in an array that holds one, as sampled for a single row; computes it."""
    value = sampled.item()
    assert isinstance(value, int)
    return value


def random_keys(seed: int | None) -> Iterator[mx.array | None]:
    """A key a draw; without a seed None, which stands for MLX's own state."""
    raise NotImplementedError("week 1 day 7 task 3: random_keys is not written yet")
