"""What tests of sampling share: what cuts leave, the token that a number picks, and requests alone."""

from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np

from accelerated.accelerate import best_sampler
from tests.support.fakes import FakeModel
from tests.support.oracles import Array, expected_kept, softmax
from tiny_llm import SamplingParams, ScheduledTokens, Sequence
from tiny_llm.engine.sampling_batch import Sampled


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


def draw_alone(logits: mx.array, params: SamplingParams, sequence: Sequence) -> int:
    """The next token of a sequence from logits [1, V]; `params` name all ids that end an answer."""
    entry = ScheduledTokens(sequence, 0, sequence.num_tokens, True)
    sampled = Sampled.of(logits, [entry], {sequence.id: params}, best_sampler())
    return int(sampled.token_ids.item())


def drawn_alone(prompt: Items[int], params: SamplingParams, num_tokens: int) -> list[int]:
    """What the fake model's request gets when it runs alone, without any cache."""
    model, sequence = FakeModel(), Sequence(0, prompt)
    for _ in range(num_tokens):
        logits = model(mx.array([sequence.token_ids]), logits_to_keep=1)[:, -1]
        sequence.token_ids.append(draw_alone(logits, params, sequence))
    return sequence.generated_ids
