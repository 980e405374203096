"""All rows of a step sampled at once, in array operations that treat each row by its own parameters."""

import mlx.core as mx

from .given.sampling import SamplingBatch


def sample_batch(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Sample every row, greedily or at random, without waiting for a number.

    As in `make_sampler`, the cuts look at the distribution as the model gives it, and the temperature is
    applied to what they leave. A row's token does not depend on the other rows.

    Args:
        logits: [B, V], of any type.
        batch: how each row is sampled.

    Returns:
        token_ids: [B]
    """
    raise NotImplementedError("week 3 day 3 task 8: sample_batch is not written yet")


def kept_tokens(logprobs: mx.array, batch: SamplingBatch) -> mx.array:
    """What the cuts of each row leave, the same tokens as `keep_likely` keeps of the row alone.

    Sorts once, and only if a row is cut by top_k or top_p. Of equally likely tokens at the edge, the first
    ones stay.

    Args:
        logprobs: [B, V], float32.
        batch: the cuts of each row.

    Returns:
        kept: [B, V], booleans.
    """
    raise NotImplementedError("week 3 day 3 task 8: kept_tokens is not written yet")


def draw(weights: mx.array, uniform: mx.array) -> mx.array:
    """Pick a token per row with a probability proportional to its weight, by one random number per row.

    Lay the weights of a row end to end: the token is the one at the fraction `uniform` of the whole length.

    Args:
        weights: [B, V], not negative and not all 0.
        uniform: [B], from 0 to below 1.

    Returns:
        token_ids: [B], of tokens whose weight is not 0.
    """
    raise NotImplementedError("week 3 day 3 task 8: draw is not written yet")
