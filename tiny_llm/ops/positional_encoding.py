"""Rotary position embedding (RoPE, arXiv:2104.09864) and its published ways of reaching further."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class RopeScaling(Protocol):
    """A change of the rotation frequencies that lets a model read further than it was trained."""

    @property
    def amplitude(self) -> float:
        """Factor of the rotated vectors."""
        ...

    def frequencies(self, dims: int, base: float) -> mx.array:
        """[dims / 2] radians a position, in place of `rope_frequencies`."""
        ...


class Rotation(Protocol):
    """A rotation as the model calls it, with RoPE's arguments; later days add a faster one."""

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array: ...


class RoPE:
    """Rotates pairs of dimensions by an angle that grows with the position.

    Args:
        dims: D, the even head dimension.
        seq_len: number of positions the tables hold.
        base: the rotation of pair i is base ** (-2 i / D) radians a position.
        traditional: pairs are neighbours (0, 1), (2, 3), ... as in the paper; otherwise each half of
            the vector holds one member of every pair, as Qwen and Llama checkpoints have it.
        scaling: changed frequencies, for checkpoints that ask for them.

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
        """Rotate each vector by its position.

        Args:
            x: [B, L, H, D]
            offset: position of the first of the L vectors: one for all rows, or a list with one a row;
                or the slice of the L positions; 0 unless given.

        Returns:
            [B, L, H, D], in the type of x.

        Raises:
            ValueError: the `D` of x is not `dims`; the offset does not match x (`first_positions`); or a
                position is outside the table, which has `seq_len`.
        """
        raise NotImplementedError("week 1 day 2 task 2: RoPE.__call__ is not written yet")

    @staticmethod
    def first_positions(offset: int | slice | list[int] | None, B: int, L: int) -> list[int]:
        """The first position of each of the B rows, or a single one that all rows share.

        Raises:
            ValueError: a list has not one offset a row, `len(offset)` for `B`; or a slice does not name `L`
                positions.
        """
        raise NotImplementedError("week 1 day 2 task 3: RoPE.first_positions is not written yet")


def rope_frequencies(dims: int, base: float) -> mx.array:
    """Radians a position for each pair, from 1 down to nearly 1 / base: [dims / 2]."""
    raise NotImplementedError("week 1 day 2 task 1: rope_frequencies is not written yet")


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor. Source: arXiv:2306.15595."""

    factor: float
    amplitude: float = 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        raise NotImplementedError("week 1 day 2 task 4: LinearScaling.frequencies is not written yet")


@dataclass(frozen=True)
class Llama3Scaling:
    """Slow rotations divided by a factor, fast ones left, those between mixed. Source: Llama 3.1's code.

    A pair is slow when fewer than `low_freq_factor` of its turns fit in the context trained on, fast when
    more than `high_freq_factor` do.
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
    """Interpolation pair by pair, and sharper attention for the longer context. Source: arXiv:2309.00071.

    Pairs that turn more than `beta_fast` times in the context trained on are left as they are, pairs that
    turn less than `beta_slow` times are interpolated in full, with a linear ramp over the pairs between.
    `amplitude` is the paper's sqrt(1 / t).
    """

    factor: float
    original_max_position_embeddings: int
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @staticmethod
    def default_amplitude(factor: float, mscale: float = 1.0) -> float:
        """0.1 ln(factor) + 1, the paper's equation 22; `mscale` weighs the logarithm."""
        raise NotImplementedError("week 1 day 2 task 4: YarnScaling.default_amplitude is not written yet")

    def frequencies(self, dims: int, base: float) -> mx.array:
        raise NotImplementedError("week 1 day 2 task 4: YarnScaling.frequencies is not written yet")
