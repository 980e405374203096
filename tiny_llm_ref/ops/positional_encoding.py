"""Rotary position embedding (RoPE, arXiv:2104.09864) and its published ways of reaching further."""

import math
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
        if dims % 2 != 0:
            raise ValueError(f"RoPE rotates pairs, so dims must be even, got {dims}")
        self.dims = dims
        self.seq_len = seq_len
        self.traditional = traditional
        frequencies = scaling.frequencies(dims, base) if scaling else rope_frequencies(dims, base)
        amplitude = scaling.amplitude if scaling else 1.0
        angles = mx.arange(seq_len, dtype=mx.float32)[:, None] * frequencies[None, :]
        self._cos = mx.cos(angles) * amplitude  # [seq_len, D / 2]
        self._sin = mx.sin(angles) * amplitude

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
        B, L, _, D = x.shape
        if self.dims != D:
            raise ValueError(f"this RoPE rotates {self.dims} dimensions, x has {D}")
        first = self.first_positions(offset, B, L)
        if min(first) < 0 or max(first) + L > self.seq_len:
            raise ValueError(
                f"positions {min(first)} to {max(first) + L - 1} are outside the {self.seq_len} of this RoPE"
            )
        positions = mx.array(first)[:, None] + mx.arange(L)[None, :]  # [B or 1, L]
        cos = self._cos[positions][:, :, None, :]  # [B or 1, L, 1, D / 2]
        sin = self._sin[positions][:, :, None, :]
        return self._rotate(x.astype(mx.float32), cos, sin).astype(x.dtype)

    @staticmethod
    def first_positions(offset: int | slice | list[int] | None, B: int, L: int) -> list[int]:
        """The first position of each of the B rows, or a single one that all rows share.

        Raises:
            ValueError: a list has not one offset a row, `len(offset)` for `B`; or a slice does not name `L`
                positions.
        """
        if offset is None:
            return [0]
        if isinstance(offset, slice):
            start = offset.start or 0
            if offset.stop is None or offset.step not in (None, 1) or offset.stop - start != L:
                raise ValueError(f"{offset} does not name the {L} positions of x")
            return [start]
        if isinstance(offset, list):
            if len(offset) != B:
                raise ValueError(f"{len(offset)} offsets for the {B} rows of x: give one a row")
            return offset or [0]  # without rows any position will do
        return [offset]

    def _rotate(self, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        if self.traditional:
            a, b = x[..., 0::2], x[..., 1::2]
            return mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
        a, b = x[..., : self.dims // 2], x[..., self.dims // 2 :]
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rope_frequencies(dims: int, base: float) -> mx.array:
    """Radians a position for each pair, from 1 down to nearly 1 / base: [dims / 2]."""
    return mx.power(float(base), -mx.arange(0, dims, 2, dtype=mx.float32) / dims)


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor. Source: arXiv:2306.15595."""

    factor: float
    amplitude: float = 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        return rope_frequencies(dims, base) / self.factor


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
        frequencies = rope_frequencies(dims, base)
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        share_kept = mx.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return frequencies * (share_kept + (1 - share_kept) / self.factor)


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
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        frequencies = rope_frequencies(dims, base)
        first = self._pair_that_turns(self.beta_fast, dims, base)
        last = self._pair_that_turns(self.beta_slow, dims, base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        width = max(last - first, 0.001)  # first == last would divide by zero
        share_interpolated = mx.clip((mx.arange(dims // 2) - first) / width, 0.0, 1.0)
        return frequencies * ((1 - share_interpolated) + share_interpolated / self.factor)

    def _pair_that_turns(self, num_turns: float, dims: int, base: float) -> float:
        """Index, as a real number, of the pair that turns so often in the context trained on."""
        context = self.original_max_position_embeddings
        return dims * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(base))
