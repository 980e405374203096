"""Sample all rows of a step at once, each with its own parameters, in array operations."""

import mlx.core as mx

from .sampling_batch import SamplingBatch


def sample_batch(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Sample every row, greedily or at random, without evaluating anything.

    As in `make_sampler`, first drop unlikely tokens, judged by the distribution as the model gives it. Then
    apply the temperature to the rest. A row's token does not depend on the other rows.

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
    """Mark the tokens that each row keeps: the same ones that `keep_likely` keeps of the row alone.

    Sort once, and only if some row uses top_k or top_p. If only some of several equally likely tokens can
    stay, keep those with the smallest ids.

    Args:
        logprobs: [B, V], float32.
        batch: top_p, top_k and min_p of each row.

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
    """Draw one token per row, with a probability proportional to its weight, using one random number per row.

    Lay the weights of a row end to end. The token is the one found at the fraction `uniform` of the total
    length.

    A GPU sums in parallel, and rounds where the work of one thread ends: its sums may grow a little at a
    token of weight 0, or shrink. So only the sums at weights above 0 count, and the largest of them is the
    total.

    Args:
        weights: [B, V], not negative and not all 0.
        uniform: [B], at least 0 and below 1.

    Returns:
        token_ids: [B]; a token of weight 0 is never drawn.
    """
    reached = mx.where(weights > 0, mx.cumsum(weights, axis=-1), 0)
    return mx.argmax(reached > uniform[:, None] * mx.max(reached, axis=-1, keepdims=True), axis=-1)
