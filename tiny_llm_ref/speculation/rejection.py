"""Accept drafts at random, so that tokens are distributed as without drafts."""

import mlx.core as mx

from ..engine.batch_sampler import draw, kept_tokens
from ..engine.sampling_batch import SamplingBatch


def probabilities(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Return the distribution that `sample_batch` draws each row's token from: cuts first, then temperature.

    Args:
        logits: [R, V], of any type.
        batch: how each row is sampled.

    Returns:
        [R, V], float32; for a greedy row, 1 at the likeliest token.
    """
    logits = logits.astype(mx.float32)
    temperature = mx.array(batch.temperature)[:, None]
    kept = logits
    if batch.has_cuts:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        kept = mx.where(kept_tokens(logprobs, batch), logits, -mx.inf)
    tempered = mx.softmax(kept / mx.where(temperature == 0, 1, temperature), axis=-1)
    is_likeliest = mx.arange(logits.shape[-1]) == mx.argmax(logits, axis=-1, keepdims=True)
    return mx.where(temperature == 0, is_likeliest, tempered)


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
    p_draft, q_draft = (mx.take_along_axis(x, draft_ids[:, None], axis=-1)[:, 0] for x in (p, q))
    return accepting * q_draft < p_draft, draw(mx.maximum(p - q, 0), drawing)
