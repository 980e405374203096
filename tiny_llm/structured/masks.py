"""Which tokens may come next, one bit per token, and how that changes the logits."""

from collections.abc import Sequence as Items
from functools import cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from ..scheduling.sequence import Sequence
from .constraint import Constraint

Bits = npt.NDArray[np.uint32]


class MaskedRow(NamedTuple):
    """A row of logits under a grammar.

    Attributes:
        row: its number in the batch.
        constraint: of its request. It has read the tokens of the answer, and no drafts.
        draft_ids: the drafts before the token that is sampled in this row.
    """

    row: int
    constraint: Constraint
    draft_ids: tuple[int, ...] = ()


def masked_rows(sequences: Items[Sequence], constraints: Items[Constraint | None]) -> list[MaskedRow]:
    """Find the rows of a step that are under a grammar, and the drafts before each.

    The tokens of an answer that its constraint has not read are drafts. Those from the first unreadable one
    on are left out, since verification stops there. Later rows keep their place; their masks don't matter.

    Args:
        sequences: one per row of logits. Each ends with the drafts before its row.
        constraints: of the same rows; None for a request without a grammar.

    Returns:
        One `MaskedRow` for each row with a constraint, in the order of the rows.
    """
    raise NotImplementedError("week 3 day 8 task 2: masked_rows is not written yet")


def fill_masks(rows: Items[MaskedRow]) -> Bits:
    """Compute the masks of all rows: one call for constraints without drafts, another for those with drafts.

    The calls are `fill_next_token_bitmask_par` and `fill_next_token_bitmask_par_with_draft_tokens` of
    llguidance.numpy, with `executor()`. Each matcher comes with the number of its first mask. Each call
    spreads its matchers over all threads. So a call per row would leave threads idle, and a matcher that
    appears twice in a call raises "Already borrowed".

    Among the rows of a constraint, the drafts of each are a prefix of the next row's. So the matcher reads
    the longest drafts only, and the call writes a mask before the first draft and one after each. It rolls
    the matcher back itself.

    Args:
        rows: at least one. The rows of a constraint are in the order of their number of drafts. All
            constraints have the same `vocab_size`.

    Returns:
        [R, W], uint32, one mask per row, with one bit per token. W is vocab_size / 32, rounded up. Bit t % 32
        of word t // 32, counted from the lowest, is 1 if token t may come next. After a draft that the
        grammar forbids, masks have no meaning.
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
    """Return the threads that compute masks, the same for all calls."""
    return LLExecutor()
