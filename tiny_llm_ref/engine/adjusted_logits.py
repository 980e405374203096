"""Change logits by a request's parameters before sampling: minimum lengths, biases, penalties, grammars."""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..generation.sampler import SamplingParams
from ..model.engine_operations import MaskRows
from ..scheduling.scheduler_output import ScheduledTokens
from ..scheduling.sequence import Sequence
from ..structured.step_masks import Masks
from .token_counts import counts_of

FORCED = 1e9
"""Added to the logit of a token that must come: more than any logit, and still a number."""


def adjust_logits(
    logits: mx.array,
    entries: Items[ScheduledTokens],
    params: Mapping[int, SamplingParams],
    mask_rows: Callable[[], MaskRows] | None = None,
) -> mx.array:
    """Apply all changes to the logits: tokens that may not come yet, biases, penalties, and grammars last.

    All but grammars touch only tokens that a request's parameters or its own tokens name, for all rows
    together. A grammar touches the rows of its own request only.

    Args:
        logits: [B, V]
        entries: one per row.
        params: by sequence id; `stop_token_ids` include the end-of-text ids.
        mask_rows: as for `EngineOperations`.

    Returns:
        [B, V]; the argument itself if nothing changes.
    """
    masks = Masks.filled_beside(logits, entries)
    sequences = [(row, entry.sequence) for row, entry in enumerate(entries)]
    changed = [(row, each, params[each.id]) for row, each in sequences if params[each.id].changes_logits]
    biased = [
        (row, token, bias)
        for row, sequence, each in changed
        for token, bias in biases_of(sequence, each, masks, row).items()
        if token < logits.shape[-1]
    ]
    penalized = [penalties_of(row, each, of_row) for row, each, of_row in changed if of_row.has_penalties]
    if not biased and not penalized:
        return masks.apply(logits, mask_rows)
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
    return masks.apply(adjusted, mask_rows)


def biases_of(sequence: Sequence, params: SamplingParams, masks: Masks, row: int) -> dict[int, float]:
    """The numbers to add to the logits of some tokens, by token id.

    An answer that has to end by its grammar may end before `min_tokens`.
    """
    num_generated = sequence.num_tokens - sequence.num_prompt_tokens
    if num_generated < len(params.forced):
        return {params.forced[num_generated]: FORCED}
    added = dict(params.biases)
    if num_generated < params.min_tokens and not masks.allow_only(row, params.stop_token_ids):
        added |= dict.fromkeys(params.stop_token_ids, -math.inf)
    return added


def penalties_of(row: int, sequence: Sequence, params: SamplingParams) -> tuple[npt.NDArray[Any], ...]:
    """For each distinct token: its row, its id, the repetition penalty, and the number to subtract."""
    ids, counts = counts_of(sequence)
    return (
        np.full(len(ids), row),
        ids,
        np.full(len(ids), params.repetition_penalty),
        params.frequency_penalty * counts + params.presence_penalty * (counts > 0),
    )
