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
    likeliest = mx.argmax(logits, axis=-1)
    if batch.is_greedy:
        return likeliest
    logits = logits.astype(mx.float32)
    kept = logits
    if batch.has_cuts:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        kept = mx.where(kept_tokens(logprobs, batch), logits, -mx.inf)
    temperature = mx.array(batch.temperature)
    divisor = mx.where(temperature == 0, 1, temperature)[:, None]
    weights = mx.exp((kept - mx.max(kept, axis=-1, keepdims=True)) / divisor)
    return mx.where(temperature == 0, likeliest, draw(weights, mx.array(batch.uniform)))


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
    top_p, top_k, log_min_p = (mx.array(cut)[:, None] for cut in (batch.top_p, batch.top_k, batch.log_min_p))
    is_likely = logprobs >= mx.max(logprobs, axis=-1, keepdims=True) + log_min_p
    if not batch.has_rank_cuts:
        return is_likely
    likeliest_first = -mx.sort(-logprobs, axis=-1)
    probs = mx.exp(likeliest_first)
    reached_before = mx.cumsum(probs, axis=-1) - probs
    rank = mx.arange(logprobs.shape[-1])
    num_kept = mx.sum((rank < top_k) & (reached_before < top_p), axis=-1, keepdims=True)
    last = mx.take_along_axis(likeliest_first, num_kept - 1, axis=-1)
    is_above, is_last = logprobs > last, logprobs == last
    num_last = num_kept - mx.sum(is_above, axis=-1, keepdims=True)
    return is_likely & (is_above | (is_last & (mx.cumsum(is_last, axis=-1) <= num_last)))


def draw(weights: mx.array, uniform: mx.array) -> mx.array:
    """Pick a token per row with a probability proportional to its weight, by one random number per row.

    Lay the weights of a row end to end: the token is the one at the fraction `uniform` of the whole length.

    Args:
        weights: [B, V], not negative and not all 0.
        uniform: [B], from 0 to below 1.

    Returns:
        token_ids: [B], of tokens whose weight is not 0.
    """
    reached = mx.cumsum(weights, axis=-1)
    return mx.argmax(reached > uniform[:, None] * reached[:, -1:], axis=-1)
