"""Which tokens may come next, a bit for each, and what that does to the logits."""

from collections.abc import Sequence as Items
from functools import cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens

from ...kernels.given.mask_rows import BITS_PER_WORD
from ..sequence import Sequence
from .constraint import Constraint

Bits = npt.NDArray[np.uint32]
ALL_BITS = 2**BITS_PER_WORD - 1


class MaskedRow(NamedTuple):
    """A row of logits that a grammar limits.

    Attributes:
        row: its number.
        constraint: of its request. It has read the tokens of the answer, and no drafts.
        draft_ids: the drafts before the token that is sampled in this row.
    """

    row: int
    constraint: Constraint
    draft_ids: tuple[int, ...] = ()


def masked_rows(sequences: Items[Sequence], constraints: Items[Constraint | None]) -> list[MaskedRow]:
    """Find the rows of a step that grammars limit, and the drafts before each.

    The tokens of an answer that its constraint has not read are drafts. Those from an end-of-text id on are
    left out: nothing after it matters.

    Args:
        sequences: one per row of logits, with the drafts before the row.
        constraints: of the same rows; None for a request without a grammar.
    """
    rows = []
    for row, (sequence, constraint) in enumerate(zip(sequences, constraints, strict=True)):
        if constraint is not None:
            drafts = sequence.token_ids[sequence.num_prompt_tokens + constraint.num_tokens :]
            ends = [place for place, token in enumerate(drafts) if token in constraint.end_ids]
            rows.append(MaskedRow(row, constraint, tuple(drafts[: min(ends, default=len(drafts))])))
    return rows


def fill_masks(rows: Items[MaskedRow]) -> Bits:
    """Compute the masks of all rows: those without drafts in one call, and those with drafts in another.

    These are `fill_next_token_bitmask_par` and `fill_next_token_bitmask_par_with_draft_tokens` of
    llguidance.numpy, with `executor()`. A call uses all threads, so calling it for one row after the other
    would leave them idle. Of rows with the same constraint, the drafts of each are a prefix of those of the
    next one. So the matcher reads the longest drafts once, and what it allows after each is written on the
    way. It is rolled back by itself.

    Args:
        rows: at least one. Those of a constraint stand in the order of their number of drafts. All
            constraints have the same vocab_size.

    Returns:
        [R, W], a bit for each token, 32 in a word. Bit t % 32 of word t // 32, counted from the lowest, is 1
        if token t may come. After a draft that the grammar forbids, masks have no meaning.
    """
    longest = {row.constraint: row.draft_ids for row in rows}
    starts: dict[Constraint, int] = {}
    num_masks = 0
    for constraint, draft_ids in longest.items():
        starts[constraint] = num_masks
        num_masks += len(draft_ids) + 1
    num_words = -(-rows[0].constraint.vocab_size // BITS_PER_WORD)
    bits = np.full((num_masks, num_words), ALL_BITS, np.uint32)
    plain = [(each.matcher, starts[each]) for each, draft_ids in longest.items() if not draft_ids]
    drafted = [
        (each.matcher, starts[each], list(draft_ids)) for each, draft_ids in longest.items() if draft_ids
    ]
    words = bits.view(np.int32)
    if plain:
        fill_next_token_bitmask_par(executor(), plain, words)
    if drafted:
        fill_next_token_bitmask_par_with_draft_tokens(executor(), drafted, words)
    return bits[[starts[row.constraint] + len(row.draft_ids) for row in rows]]


def mask_rows_simple(logits: mx.array, rows: mx.array, bits: mx.array) -> mx.array:
    """Set the logits of forbidden tokens to -inf, in the given rows only.

    Args:
        logits: [B, V], of any float type.
        rows: [R], the numbers of the rows, each once.
        bits: [R, W], uint32, the mask of each of these rows; 32 x W is at least V.

    Returns:
        [B, V], a new array.
    """
    R, W = bits.shape
    is_allowed = (bits[:, :, None] >> mx.arange(BITS_PER_WORD, dtype=mx.uint32)) & 1  # [R, W, 32]
    is_allowed = is_allowed.reshape(R, W * BITS_PER_WORD)[:, : logits.shape[-1]]
    masked = mx.array(logits)
    masked[rows] = mx.where(is_allowed, logits[rows], -mx.inf)
    return masked


@cache
def executor() -> LLExecutor:
    """The threads that compute masks."""
    return LLExecutor()
