"""Logits as a request's parameters change them before it is sampled: minimum lengths, biases, penalties."""

import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items

import mlx.core as mx
import numpy as np

from ...generation.sampler import SamplingParams
from ..sequence import Sequence
from .scheduler_output import ScheduledTokens

Changes = list[tuple[int, int, float, float, float]]
"""Row, token, what is added, what a positive logit is divided by, and what is subtracted then."""


def adjust_logits(
    logits: mx.array, entries: Items[ScheduledTokens], params: Mapping[int, SamplingParams]
) -> mx.array:
    """The logits that are sampled, in vLLM's order: what may not come yet, biases, penalties.

    Only the tokens that a request's parameters name or that it holds are touched: all rows together by one
    gather and one scatter.

    Args:
        logits: [B, V]
        entries: one a row.
        params: by the id of the sequence; `stop_token_ids` hold the end-of-text ids as well.

    Returns:
        [B, V], the argument itself if nothing changes.
    """
    changes: Changes = []
    for row, entry in enumerate(entries):
        if params[entry.sequence.id].changes_logits:
            changes += changes_of(row, entry.sequence, params[entry.sequence.id], logits.shape[-1])
    if not changes:
        return logits
    rows, ids, added, divisors, subtracted = (np.array(each) for each in zip(*changes, strict=True))
    places = mx.array(rows), mx.array(ids)
    biased = logits[places].astype(mx.float32) + mx.array(added, mx.float32)
    divisor = mx.array(divisors, mx.float32)
    penalized = mx.where(biased > 0, biased / divisor, biased * divisor) - mx.array(subtracted, mx.float32)
    adjusted = mx.array(logits, mx.float32)
    adjusted[places] = penalized
    return adjusted


def changes_of(row: int, sequence: Sequence, params: SamplingParams, vocab_size: int) -> Changes:
    """How the logits of one row change, token by token."""
    counts = Counter(sequence.generated_ids)
    repeated = set(sequence.token_ids) if params.repetition_penalty != 1 else set()
    added = dict(params.biases)
    if sequence.num_tokens - sequence.num_prompt_tokens < params.min_tokens:
        added |= dict.fromkeys(params.stop_token_ids, -math.inf)
    return [
        (
            row,
            token,
            added.get(token, 0.0),
            params.repetition_penalty if token in repeated else 1.0,
            params.frequency_penalty * counts[token] + params.presence_penalty * (token in counts),
        )
        for token in sorted({*counts, *repeated, *added})
        if token < vocab_size
    ]
