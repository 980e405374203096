"""What tests of sampling share: what cuts leave, the token that a number picks, and requests alone."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from tests.support.fakes import FakeModel
from tests.support.oracles import Array, softmax
from tiny_llm import SamplingParams
from tiny_llm.serving.given.best_sampler import best_sampler
from tiny_llm.serving.given.sampling import SamplingBatch, random_numbers


def expected_kept(row: Array, top_p: float = 0, top_k: int | None = None, min_p: float = 0) -> list[bool]:
    """The three cuts token by token, from the likeliest to the least likely; of equals, the first stay."""
    probs = np.exp(row)
    kept, reached = [False] * len(row), 0.0
    for rank, token in enumerate(np.argsort(-row, kind="stable")):
        in_top_k = top_k is None or rank < top_k
        in_top_p = top_p in (0, 1) or reached < top_p
        kept[token] = bool(in_top_k and in_top_p and probs[token] >= min_p * probs.max())
        reached += probs[token]
    return kept


def probabilities(logprobs: Array, params: SamplingParams) -> Array:
    """With which each token of a row is drawn."""
    if params.temperature == 0:
        return np.eye(len(logprobs))[logprobs.argmax()]
    kept = expected_kept(logprobs, params.top_p, params.top_k, params.min_p)
    return softmax(np.where(kept, logprobs, -np.inf) / params.temperature)


def token_at(probs: Array, uniform: float) -> int:
    """The token whose share of the line from 0 to 1 holds a number."""
    return int(np.searchsorted(np.cumsum(probs / probs.sum()), uniform, side="right"))


def numbers_of(uniform: Array) -> np.ndarray:
    """Random numbers as a `SamplingBatch` has them, from such as lie between 0 and 1."""
    return (uniform * 2.0**64).astype(np.uint64)


def draw_alone(logits: mx.array, params: SamplingParams, num_drawn: int) -> int:
    """The next token from logits [1, V] of a request that has drawn so many."""
    numbers = random_numbers(np.array([params.seed or 0], np.uint64), np.array([num_drawn], np.uint64))
    return int(best_sampler()(logits, SamplingBatch((params,), numbers)).item())


def drawn_alone(prompt: Sequence[int], params: SamplingParams, num_tokens: int) -> list[int]:
    """What the fake model's request gets when it runs alone, without any cache."""
    model, tokens = FakeModel(), list(prompt)
    for n in range(num_tokens):
        tokens.append(draw_alone(model(mx.array([tokens]), logits_to_keep=1)[:, -1], params, n))
    return tokens[len(prompt) :]
