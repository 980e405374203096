"""What a request of the engine draws when it is sampled alone."""

import mlx.core as mx
import numpy as np

from tests.support.fakes import FakeModel
from tiny_llm import SamplingParams
from tiny_llm.serving.given.best_sampler import best_sampler
from tiny_llm.serving.given.sampling import SamplingBatch, random_numbers


def draw_alone(logits: mx.array, params: SamplingParams, num_drawn: int) -> int:
    """The next token from logits [1, V] of a request that has drawn so many."""
    numbers = random_numbers(np.array([params.seed or 0], np.uint64), np.array([num_drawn], np.uint64))
    return int(best_sampler()(logits, SamplingBatch((params,), numbers)).item())


def drawn_alone(prompt: list[int], params: SamplingParams, num_tokens: int) -> list[int]:
    """What the fake model's request gets when it runs alone, without any cache."""
    model, tokens = FakeModel(), list(prompt)
    for n in range(num_tokens):
        tokens.append(draw_alone(model(mx.array([tokens]), logits_to_keep=1)[:, -1], params, n))
    return tokens[len(prompt) :]
