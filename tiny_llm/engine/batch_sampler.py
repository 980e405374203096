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
    raise NotImplementedError("week 3 day 3 task 8: sample_batch is not written yet")


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
    raise NotImplementedError("week 3 day 3 task 8: kept_tokens is not written yet")


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
    raise NotImplementedError("week 3 day 3 task 8: draw is not written yet")
