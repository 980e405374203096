"""Which sequences have a grammar, and the masks of a step's rows."""

from collections.abc import Sequence as Items
from itertools import takewhile
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from ..sequence import Sequence
from ..structured.constraint import Constraint
from ..structured.masks import BITS_PER_WORD, MaskedRow, fill_masks
from .best_mask import best_mask
from .scheduler_output import ScheduledTokens

_known: WeakKeyDictionary[Sequence, Constraint] = WeakKeyDictionary()


def constrain(sequence: Sequence, constraint: Constraint) -> None:
    """Give a sequence a constraint, which lives as long as the sequence."""
    _known[sequence] = constraint


def share_constraint(sequence: Sequence, copied: Sequence) -> None:
    """Give a copy of a sequence, with drafts appended, the same constraint if there is one."""
    constraint = _known.get(sequence)
    if constraint is not None:
        _known[copied] = constraint


def constraint_of(sequence: Sequence) -> Constraint | None:
    """Return the constraint of a sequence; None if it has none."""
    return _known.get(sequence)


def with_grammars(logits: mx.array, entries: Items[ScheduledTokens]) -> mx.array:
    """Set what the entries' grammars forbid to -inf.

    Args:
        logits: [B, V]
        entries: one per row.

    Returns:
        [B, V]; the argument itself if no entry has a grammar.
    """
    if not _known:
        return logits
    rows = masked_rows(entries)
    if not rows:
        return logits
    found = fill_masks(rows)
    num_words = -(-logits.shape[-1] // BITS_PER_WORD)
    bits = np.zeros((len(rows), num_words), np.uint32)  # no grammar allows ids that only the model has
    bits[:, : found.shape[1]] = found[:, :num_words]
    return best_mask()(logits, mx.array([row.row for row in rows]), mx.array(bits))


def masked_rows(entries: Items[ScheduledTokens]) -> list[MaskedRow]:
    """Return the rows that a grammar limits.

    The tokens of an answer that its constraint has not read are drafts. After an end-of-text id among them,
    nothing matters.
    """
    rows = []
    for row, entry in enumerate(entries):
        sequence = entry.sequence
        constraint = constraint_of(sequence)
        if constraint is not None:
            unread = sequence.token_ids[sequence.num_prompt_tokens + constraint.num_tokens :]
            drafts = takewhile(lambda token, ends=constraint.end_ids: token not in ends, unread)
            rows.append(MaskedRow(row, constraint, tuple(drafts)))
    return rows
