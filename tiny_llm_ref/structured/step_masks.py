"""Which sequences have a grammar, and the masks of a step's rows."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from ..kernels.mask_rows import BITS_PER_WORD
from ..model.engine_operations import MaskRows
from ..scheduling.scheduler_output import ScheduledTokens
from ..scheduling.sequence import Sequence
from .constraint import Constraint
from .masks import Bits, MaskedRow, fill_masks, mask_rows_simple, masked_rows

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


@dataclass(frozen=True)
class Masks:
    """What the grammars of a step's rows allow.

    Args:
        rows: the rows that a grammar limits.
        bits: [R, W], the mask of each, as `fill_masks` makes them.
    """

    rows: Items[MaskedRow] = ()
    bits: Bits = field(default_factory=lambda: np.empty((0, 0), np.uint32))

    @classmethod
    def filled_beside(cls, logits: mx.array, entries: Items[ScheduledTokens]) -> "Masks":
        """Compute a step's masks, if any of its entries has a grammar, as the model computes the logits."""
        sequences = [entry.sequence for entry in entries]
        constraints = [_known.get(sequence) for sequence in sequences] if _known else []
        rows = masked_rows(sequences, constraints) if any(constraints) else []
        if not rows:
            return cls()
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        return cls(rows, fill_masks(rows))

    def allow_only(self, row: int, token_ids: Iterable[int]) -> bool:
        """Whether nothing but some of these tokens may come in a row."""
        for masked, bits in zip(self.rows, self.bits, strict=True):
            if masked.row == row:
                others = bits.copy()
                for token in token_ids:
                    others[token // BITS_PER_WORD] &= ~np.uint32(1 << token % BITS_PER_WORD)
                return not others.any()
        return False

    def apply(self, logits: mx.array, mask_rows: Callable[[], MaskRows] | None = None) -> mx.array:
        """Set the logits [B, V] of forbidden tokens to -inf; return the argument itself without any mask.

        `mask_rows` is that of `EngineOperations`.
        """
        if not self.rows:
            return logits
        num_words = -(-logits.shape[-1] // BITS_PER_WORD)
        bits = np.zeros((len(self.rows), num_words), np.uint32)  # ids that only the model has are forbidden
        bits[:, : self.bits.shape[1]] = self.bits[:, :num_words]
        masked = mask_rows_simple if mask_rows is None else mask_rows()
        return masked(logits, mx.array([row.row for row in self.rows]), mx.array(bits))
