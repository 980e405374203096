"""Choose a token from log-probabilities: the likeliest, or a random one among the likely."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from .request_params import RequestParams

Sampler = Callable[[mx.array], mx.array]
"""Log-probabilities [B, V] -> token ids [B]; rows are independent."""


@dataclass(frozen=True)
class SamplingParams(RequestParams):
    """How to sample one request, and when to end it.

    The first five parameters are those of `make_sampler`, where temperature is called temp. Generation ends
    after `max_tokens` tokens (None for no limit), or at any of the strings in `stop`. The text then ends
    before the stop string. The engine of week 3 also uses the parameters of `RequestParams`, whose
    `__post_init__` checks them.

    Raises:
        ValueError: a value is out of range; shows its `name` (temp will do for temperature) and the
            `value`. The first five have the ranges of `make_sampler`; max_tokens must be at least 1 or
            None; stop must not be a plain string or hold an empty one.
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
        """Make a sampler for one request. Don't share it: a seeded sampler counts its draws."""
        raise NotImplementedError("week 1 day 7 task 3: SamplingParams.make_sampler is not written yet")


def make_sampler(
    temp: float, top_p: float = 0, top_k: int | None = None, min_p: float = 0, seed: int | None = None
) -> Sampler:
    """Make a sampler that draws from the likely part of the model's distribution.

    First drop unlikely tokens (`keep_likely`), judged by the distribution as the model gives it. Then divide
    the log-probabilities of the rest by the temperature and draw. A seeded sampler makes the same draws
    whatever else runs, so give each request a sampler of its own.

    Args:
        temp: divides the log-probabilities; 0 always takes the likeliest token.
        top_p: keep the smallest set of likeliest tokens whose probabilities add up to at least this much;
            0 and 1 keep all tokens.
        top_k: keep this many of the likeliest tokens; all by default.
        min_p: keep tokens whose probability is at least this fraction of the likeliest token's.
        seed: where the sequence of draws starts; without a seed, draws use MLX's global random state.

    Returns:
        sampler: log-probabilities [B, V] -> token ids [B]

    Raises:
        ValueError: an argument is out of range, even if temp is 0; shows its `name` and its `value`. temp
            must be at least 0 and finite, top_p and min_p from 0 to 1, top_k at least 1 or None, and seed
            from 0 to 2**64 - 1 or None.
    """
    raise NotImplementedError("week 1 day 7 task 1: make_sampler is not written yet")


def keep_likely(logprobs: mx.array, top_p: float, top_k: int | None, min_p: float) -> mx.array:
    """Return the log-probabilities [B, V], with -inf for each token that top_p, top_k or min_p drops."""
    raise NotImplementedError("week 1 day 7 task 2: keep_likely is not written yet")


def token_id(sampled: mx.array) -> int:
    """Return the id in an array with a single one, as sampled for one row. This evaluates the array."""
    value = sampled.item()
    assert isinstance(value, int)
    return value


def random_keys(seed: int | None) -> Iterator[mx.array | None]:
    """Yield one key per draw. Without a seed, yield None, which makes MLX use its global state."""
    raise NotImplementedError("week 1 day 7 task 3: random_keys is not written yet")
