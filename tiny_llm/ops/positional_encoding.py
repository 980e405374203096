"""Rotary position embedding (RoPE, arXiv:2104.09864) and published ways to extend its context."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class RopeScaling(Protocol):
    """Changed rotation frequencies, which let a model read longer texts than it was trained on."""

    @property
    def amplitude(self) -> float:
        """Factor by which the rotated vectors are multiplied."""
        ...

    def frequencies(self, dims: int, base: float) -> mx.array:
        """[dims / 2], radians per position; replaces `rope_frequencies`."""
        ...


class Rotation(Protocol):
    """A rotation as the model calls it, with RoPE's arguments. A later day adds a faster one."""

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array: ...


class RoPE:
    """Rotate pairs of dimensions by an angle that grows with the position.

    Args:
        dims: D, the head dimension; must be even.
        seq_len: number of positions in the tables.
        base: pair i turns by base ** (-2 i / D) radians per position.
        traditional: if true, the pairs are neighbors, (0, 1), (2, 3), ..., as in the paper. Otherwise
            dimension i is paired with dimension i + D / 2, as in Qwen and Llama checkpoints.
        scaling: changed frequencies, for checkpoints that need them.

    Raises:
        ValueError: `dims` is odd.
    """

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        raise NotImplementedError("week 1 day 2 task 2: RoPE.__init__ is not written yet")

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """Rotate each vector by the angles of its position.

        Args:
            x: [B, L, H, D]
            offset: position of the first of the L vectors: a number for all rows, or a list with one
                per row. A slice names all L positions. None means 0.

        Returns:
            [B, L, H, D], in the type of x.

        Raises:
            ValueError: the last axis of x, `D`, is not `dims`; `first_positions` refuses the offset; or a
                position is negative or not below `seq_len`, the size of the tables.
        """
        raise NotImplementedError("week 1 day 2 task 2: RoPE.__call__ is not written yet")

    @staticmethod
    def first_positions(offset: int | slice | list[int] | None, B: int, L: int) -> list[int]:
        """First position of each of the B rows, or a single one that all rows share.

        Raises:
            ValueError: a list does not have one offset per row (`len(offset)` is not `B`), or a slice does
                not name exactly `L` consecutive positions.
        """
        raise NotImplementedError("week 1 day 2 task 3: RoPE.first_positions is not written yet")


def rope_frequencies(dims: int, base: float) -> mx.array:
    """Radians per position for each pair, from 1 down to almost 1 / base: [dims / 2]."""
    raise NotImplementedError("week 1 day 2 task 1: rope_frequencies is not written yet")


@dataclass(frozen=True)
class LinearScaling:
    """Divide every frequency by a factor, as if positions were closer. Source: arXiv:2306.15595."""

    factor: float
    amplitude: float = 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        raise NotImplementedError("week 1 day 2 task 4: LinearScaling.frequencies is not written yet")


@dataclass(frozen=True)
class Llama3Scaling:
    """Divide slow rotations by a factor and keep fast ones. Source: Llama 3.1's code.

    Count how many full turns a pair makes in the training context. A pair is slow below `low_freq_factor`
    turns and fast above `high_freq_factor`. Between the two, the kept share grows linearly with the turns.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    amplitude: float = 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        raise NotImplementedError("week 1 day 2 task 4: Llama3Scaling.frequencies is not written yet")


@dataclass(frozen=True)
class YarnScaling:
    """Interpolate slow pairs only, and sharpen attention for the longer context. Source: arXiv:2309.00071.

    Pairs that turn more than `beta_fast` times in the training context keep their frequency. Pairs that
    turn less than `beta_slow` times are divided by the factor. A linear ramp over the pairs' indices
    connects the two. `amplitude` is the paper's sqrt(1 / t).
    """

    factor: float
    original_max_position_embeddings: int
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @staticmethod
    def default_amplitude(factor: float, mscale: float = 1.0) -> float:
        """0.1 ln(factor) + 1, the paper's equation 22; `mscale` multiplies the logarithm."""
        raise NotImplementedError("week 1 day 2 task 4: YarnScaling.default_amplitude is not written yet")

    def frequencies(self, dims: int, base: float) -> mx.array:
        raise NotImplementedError("week 1 day 2 task 4: YarnScaling.frequencies is not written yet")
