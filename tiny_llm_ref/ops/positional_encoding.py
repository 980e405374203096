"""Rotary position embedding (RoPE, arXiv:2104.09864) and published ways to extend its context."""

import math
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
        if dims % 2 != 0:
            raise ValueError(f"RoPE rotates pairs of dimensions, so dims must be even, got {dims}")
        self.dims = dims
        self.seq_len = seq_len
        self.traditional = traditional
        frequencies = scaling.frequencies(dims, base) if scaling else rope_frequencies(dims, base)
        amplitude = scaling.amplitude if scaling else 1.0
        angles = mx.arange(seq_len, dtype=mx.float32)[:, None] * frequencies[None, :]
        self._cos = mx.cos(angles) * amplitude  # [seq_len, D / 2]
        self._sin = mx.sin(angles) * amplitude

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
        B, L, _, D = x.shape
        if self.dims != D:
            raise ValueError(f"this RoPE rotates {self.dims} dimensions, but x has {D}")
        first = self.first_positions(offset, B, L)
        if min(first) < 0 or max(first) + L > self.seq_len:
            raise ValueError(
                f"positions {min(first)} to {max(first) + L - 1} are outside the tables of this RoPE, "
                f"which hold {self.seq_len} positions"
            )
        positions = mx.array(first)[:, None] + mx.arange(L)[None, :]  # [B or 1, L]
        cos = self._cos[positions][:, :, None, :]  # [B or 1, L, 1, D / 2]
        sin = self._sin[positions][:, :, None, :]
        return self._rotate(x.astype(mx.float32), cos, sin).astype(x.dtype)

    @staticmethod
    def first_positions(offset: int | slice | list[int] | None, B: int, L: int) -> list[int]:
        """First position of each of the B rows, or a single one that all rows share.

        Raises:
            ValueError: a list does not have one offset per row (`len(offset)` is not `B`), or a slice does
                not name exactly `L` consecutive positions.
        """
        if offset is None:
            return [0]
        if isinstance(offset, slice):
            start = offset.start or 0
            if offset.stop is None or offset.step not in (None, 1) or offset.stop - start != L:
                raise ValueError(f"the slice must name the {L} positions of x, got {offset}")
            return [start]
        if isinstance(offset, list):
            if len(offset) != B:
                raise ValueError(f"a list needs one offset per row: got {len(offset)} offsets for {B} rows")
            return offset or [0]  # no rows: any position will do
        return [offset]

    def _rotate(self, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        if self.traditional:
            a, b = x[..., 0::2], x[..., 1::2]
            return mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
        a, b = x[..., : self.dims // 2], x[..., self.dims // 2 :]
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rope_frequencies(dims: int, base: float) -> mx.array:
    """Radians per position for each pair, from 1 down to almost 1 / base: [dims / 2]."""
    return mx.power(float(base), -mx.arange(0, dims, 2, dtype=mx.float32) / dims)


@dataclass(frozen=True)
class LinearScaling:
    """Divide every frequency by a factor, as if positions were closer. Source: arXiv:2306.15595."""

    factor: float
    amplitude: float = 1.0

    def frequencies(self, dims: int, base: float) -> mx.array:
        return rope_frequencies(dims, base) / self.factor


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
        frequencies = rope_frequencies(dims, base)
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        share_kept = mx.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return frequencies * (share_kept + (1 - share_kept) / self.factor)


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
        """Fractional index of the pair that makes this many turns in the training context."""
        context = self.original_max_position_embeddings
        return dims * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(base))
