"""Which tokens may come next, one bit per token, and how that changes the logits."""

from collections.abc import Sequence as Items
from functools import cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens

from ..kernels.mask_rows import BITS_PER_WORD
from ..scheduling.sequence import Sequence
from .constraint import Constraint

Bits = npt.NDArray[np.uint32]
ALL_BITS = 2**BITS_PER_WORD - 1


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
    rows = []
    for row, (sequence, constraint) in enumerate(zip(sequences, constraints, strict=True)):
        if constraint is not None:
            drafts = sequence.token_ids[sequence.num_prompt_tokens + constraint.num_tokens :]
            rows.append(MaskedRow(row, constraint, tuple(constraint.readable_prefix(drafts))))
    return rows


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
    """Return the threads that compute masks, the same for all calls."""
    return LLExecutor()
