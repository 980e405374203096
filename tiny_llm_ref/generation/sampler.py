"""From log-probabilities to a token: greedy, or at random within bounds."""

import itertools
import math
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
        super().__post_init__()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, or None for no bound, got {self.max_tokens}")
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop must be a tuple of strings that are not empty, got {self.stop!r}")
        self.make_sampler()

    def make_sampler(self) -> Sampler:
        """A sampler of its own for a request: one that is seeded counts its draws."""
        return make_sampler(self.temperature, self.top_p, self.top_k, self.min_p, self.seed)


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
    _check_ranges(temp, top_p, top_k, min_p, seed)
    if temp == 0:
        return lambda logprobs: mx.argmax(logprobs, axis=-1)
    keys = random_keys(seed)

    def sample(logprobs: mx.array) -> mx.array:
        kept = keep_likely(logprobs, top_p, top_k, min_p)
        return mx.random.categorical(kept / temp, key=next(keys))

    return sample


def keep_likely(logprobs: mx.array, top_p: float, top_k: int | None, min_p: float) -> mx.array:
    """Log-probabilities [B, V] with -inf for every token that one of the three cuts drops."""
    likeliest_first = mx.argsort(-logprobs, axis=-1)
    rank = mx.argsort(likeliest_first, axis=-1)  # of each token in its row, 0 for the likeliest
    keep = mx.ones(logprobs.shape, dtype=mx.bool_)
    if top_k is not None:
        keep = keep & (rank < top_k)
    if 0 < top_p < 1:
        probs = mx.exp(mx.take_along_axis(logprobs, likeliest_first, axis=-1).astype(mx.float32))
        reached_before = mx.cumsum(probs, axis=-1) - probs
        keep = keep & mx.take_along_axis(reached_before < top_p, rank, axis=-1)
    if min_p > 0:
        keep = keep & (logprobs >= mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p))
    return mx.where(keep, logprobs, -mx.inf)


def token_id(sampled: mx.array) -> int:
    """The id in an array that holds one, as sampled for a single row; computes it."""
    value = sampled.item()
    assert isinstance(value, int)
    return value


def _check_ranges(temp: float, top_p: float, top_k: int | None, min_p: float, seed: int | None) -> None:
    if not 0 <= temp < math.inf:
        raise ValueError(f"temperature (temp) must be 0 (greedy) or a positive number, got {temp}")
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p must be between 0 and 1, got {top_p}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, or None to keep all tokens, got {top_k}")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, got {min_p}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"seed must be a non-negative integer below 2**64, got {seed}")


def random_keys(seed: int | None) -> Iterator[mx.array | None]:
    """A key a draw; without a seed None, which stands for MLX's own state."""
    if seed is None:
        yield from itertools.repeat(None)
        return
    key = mx.random.key(seed)
    while True:
        key, draw = mx.random.split(key)
        yield draw
