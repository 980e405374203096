"""Logits as a request's parameters change them before it is sampled: minimum lengths, biases, penalties."""

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ...generation.sampler import SamplingParams
from ..sequence import Sequence
from .scheduler_output import ScheduledTokens
from .token_counts import counts_of


def adjust_logits(
    logits: mx.array, entries: Items[ScheduledTokens], params: Mapping[int, SamplingParams]
) -> mx.array:
    """The logits that are sampled, in vLLM's order: what may not come yet, biases, penalties.

    Only the tokens that a request's parameters name or that it holds are touched: those of all rows together.

    Args:
        logits: [B, V]
        entries: one a row.
        params: by the id of the sequence; `stop_token_ids` hold the end-of-text ids as well.

    Returns:
        [B, V], the argument itself if nothing changes.
    """
    sequences = [(row, entry.sequence) for row, entry in enumerate(entries)]
    changed = [(row, each, params[each.id]) for row, each in sequences if params[each.id].changes_logits]
    biased = [
        (row, token, bias)
        for row, sequence, each in changed
        for token, bias in biases_of(sequence, each).items()
        if token < logits.shape[-1]
    ]
    penalized = [penalties_of(row, each, of_row) for row, each, of_row in changed if of_row.has_penalties]
    if not biased and not penalized:
        return logits
    adjusted = mx.array(logits, mx.float32)
    if biased:
        rows, ids, added = (np.array(each) for each in zip(*biased, strict=True))
        places = mx.array(rows), mx.array(ids)
        adjusted[places] = adjusted[places] + mx.array(added, mx.float32)
    if penalized:
        rows, ids, divisors, subtracted = (np.concatenate(each) for each in zip(*penalized, strict=True))
        places, divisor = (mx.array(rows), mx.array(ids)), mx.array(divisors, mx.float32)
        held = mx.where(adjusted[places] > 0, adjusted[places] / divisor, adjusted[places] * divisor)
        adjusted[places] = held - mx.array(subtracted, mx.float32)
    return adjusted


def biases_of(sequence: Sequence, params: SamplingParams) -> dict[int, float]:
    """What is added to the logits of some tokens."""
    added = dict(params.biases)
    if sequence.num_tokens - sequence.num_prompt_tokens < params.min_tokens:
        added |= dict.fromkeys(params.stop_token_ids, -math.inf)
    return added


def penalties_of(row: int, sequence: Sequence, params: SamplingParams) -> tuple[npt.NDArray[Any], ...]:
    """Row, token, what a positive logit is divided by and what is subtracted then, of each token held."""
    ids, counts = counts_of(sequence)
    return (
        np.full(len(ids), row),
        ids,
        np.full(len(ids), params.repetition_penalty),
        params.frequency_penalty * counts + params.presence_penalty * (counts > 0),
    )
