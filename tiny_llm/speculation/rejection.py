"""Accept drafts at random, so that tokens are distributed as without drafts."""

import mlx.core as mx

from ..engine.sampling_batch import SamplingBatch


def probabilities(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Return the distribution that `sample_batch` draws each row's token from: cuts first, then temperature.

    Args:
        logits: [R, V], of any type.
        batch: how each row is sampled.

    Returns:
        [R, V], float32; for a greedy row, 1 at the likeliest token.
    """
    raise NotImplementedError("week 3 day 6 task 6: probabilities is not written yet")


def reject(
    p: mx.array, q: mx.array, draft_ids: mx.array, accepting: mx.array, drawing: mx.array
) -> tuple[mx.array, mx.array]:
    """Accept each draft with probability min(1, p/q); draw what takes its place from max(p - q, 0).

    If each draft was drawn from its row of q, the result is distributed like p, whatever q is.

    Args:
        p, q: [R, V], the distributions of the model and of the drafts.
        draft_ids: [R]
        accepting, drawing: [R], independent random numbers, at least 0 and below 1: the first decide whether
            drafts are accepted, the second draw replacements.

    Returns:
        is_accepted: [R], booleans.
        token_ids: [R], the replacement for each draft; that of an accepted draft has no meaning.

    Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023.
    """
    raise NotImplementedError("week 3 day 6 task 6: reject is not written yet")
