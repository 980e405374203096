"""Choose a token from log-probabilities: the likeliest, or a random one among the likely."""

import itertools
import math
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
        super().__post_init__()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, or None for no limit, got {self.max_tokens}")
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop must be a tuple of nonempty strings, got {self.stop!r}")
        self.make_sampler()

    def make_sampler(self) -> Sampler:
        """Make a sampler for one request. Don't share it: a seeded sampler counts its draws."""
        return make_sampler(self.temperature, self.top_p, self.top_k, self.min_p, self.seed)


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
    _check_ranges(temp, top_p, top_k, min_p, seed)
    if temp == 0:
        return lambda logprobs: mx.argmax(logprobs, axis=-1)
    keys = random_keys(seed)

    def sample(logprobs: mx.array) -> mx.array:
        kept = keep_likely(logprobs, top_p, top_k, min_p)
        return mx.random.categorical(kept / temp, key=next(keys))

    return sample


def keep_likely(logprobs: mx.array, top_p: float, top_k: int | None, min_p: float) -> mx.array:
    """Return the log-probabilities [B, V], with -inf for each token that top_p, top_k or min_p drops."""
    likeliest_first = mx.argsort(-logprobs, axis=-1)
    rank = mx.argsort(likeliest_first, axis=-1)  # of each token in its row; 0 is the likeliest
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
    """Return the id in an array with a single one, as sampled for one row. This evaluates the array."""
    value = sampled.item()
    assert isinstance(value, int)
    return value


def _check_ranges(temp: float, top_p: float, top_k: int | None, min_p: float, seed: int | None) -> None:
    if not 0 <= temp < math.inf:
        raise ValueError(f"temperature (temp) must be 0 (greedy) or a positive, finite number, got {temp}")
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p must be between 0 and 1, got {top_p}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, or None to keep all tokens, got {top_k}")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, got {min_p}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed}")


def random_keys(seed: int | None) -> Iterator[mx.array | None]:
    """Yield one key per draw. Without a seed, yield None, which makes MLX use its global state."""
    if seed is None:
        yield from itertools.repeat(None)
        return
    key = mx.random.key(seed)
    while True:
        key, draw = mx.random.split(key)
        yield draw
