"""Which tokens may come next, a bit for each, and what that does to the logits."""

from collections.abc import Sequence as Items
from functools import cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from ..sequence import Sequence
from .constraint import Constraint

Bits = npt.NDArray[np.uint32]


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
    raise NotImplementedError("week 3 day 8 task 2: masked_rows is not written yet")


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
    raise NotImplementedError("week 3 day 8 task 3: fill_masks is not written yet")


def mask_rows_simple(logits: mx.array, rows: mx.array, bits: mx.array) -> mx.array:
    """Set the logits of forbidden tokens to -inf, in the given rows only.

    Args:
        logits: [B, V], of any float type.
        rows: [R], the numbers of the rows, each once.
        bits: [R, W], uint32, the mask of each of these rows; 32 x W is at least V.

    Returns:
        [B, V], a new array.
    """
    raise NotImplementedError("week 3 day 8 task 4: mask_rows_simple is not written yet")


@cache
def executor() -> LLExecutor:
    """The threads that compute masks."""
    return LLExecutor()
