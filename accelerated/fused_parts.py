"""Parts of a model that call kernels, each built and called like the part of week 1 that it replaces."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from tiny_llm.model.config import ModelConfig
from tiny_llm.model.qwen3 import HeadProjection, ProjectHeads
from tiny_llm.ops.basics import Projection
from tiny_llm.ops.norm import Norm
from tiny_llm.ops.positional_encoding import RoPE, RopeScaling, Rotation, rope_frequencies
from tiny_llm.ops.quantize import QuantizedProjection, QuantizedWeights

from .fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from .integer_matmul import IntegerProjection

PACKED = QuantizedProjection, IntegerProjection


@dataclass(frozen=True, eq=False)
class FusedNorm:
    """RMSNorm in one pass over memory."""

    dim: int
    weight: mx.array
    eps: float = 1e-5

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E]"""
        return rms_norm(x, self.weight, self.eps)


class FastRope:
    """A rotation that is built and checks as RoPE does; the classes below it rotate.

    Args:
        dims, seq_len, base, traditional, scaling: as for RoPE.
    """

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        self.dims, self.seq_len, self.traditional = dims, seq_len, traditional
        self.frequencies = scaling.frequencies(dims, base) if scaling else rope_frequencies(dims, base)
        self.amplitude = scaling.amplitude if scaling else 1.0

    def first_positions(self, offset: int | slice | list[int] | None, B: int, L: int, D: int) -> list[int]:
        """`RoPE.first_positions`; ValueError unless `D` is `dims`, and all positions are below `seq_len`."""
        first = RoPE.first_positions(offset, B, L)
        if self.dims != D:
            raise ValueError(f"this RoPE rotates {self.dims} dimensions, x has {D}")
        if min(first) < 0 or max(first) + L > self.seq_len:
            last = max(first) + L - 1
            raise ValueError(f"positions {min(first)} to {last} are outside the {self.seq_len} of this RoPE")
        return first


class FusedRope(FastRope):
    """RoPE in one pass over memory."""

    @cached_property
    def tables(self) -> tuple[mx.array, mx.array]:
        """Cosines and sines, [seq_len, D / 2] each, multiplied by the amplitude."""
        angles = mx.arange(self.seq_len, dtype=mx.float32)[:, None] * self.frequencies[None, :]
        return mx.cos(angles) * self.amplitude, mx.sin(angles) * self.amplitude

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """[B, L, H, D] -> [B, L, H, D], errors as for RoPE."""
        B, L, _, D = x.shape
        return rotate(x, *self.tables, self.first_positions(offset, B, L, D), self.traditional)


def fused_mlp(
    dim: int, hidden_dim: int, w_gate: Projection, w_up: Projection, w_down: Projection
) -> Callable[[mx.array], mx.array]:
    """SwiGLU in one pass over memory, after one product for gate and up if they are packed alike.

    Raises:
        ValueError: `w_gate` and `w_up` are packed, and their shapes differ.
    """
    shapes = [each.weights.shape for each in (w_gate, w_up) if isinstance(each, PACKED)]
    if len(set(shapes)) > 1:
        raise ValueError(f"w_gate and w_up must have the same shape, got {shapes[0]} and {shapes[1]}")
    both = joined(w_gate, w_up)
    if both is not None:
        return lambda x: w_down(swiglu_halves(both(x)))
    return lambda x: w_down(swiglu(w_gate(x), w_up(x)))


def fused_heads(
    config: ModelConfig,
    wq: Projection,
    wk: Projection,
    wv: Projection,
    rope: Rotation,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
) -> ProjectHeads:
    """Heads that are split, normalized and rotated in one pass after one product for q, k and v.

    They need projections packed alike, a fused rotation, and fused norms or none. Otherwise this returns a
    HeadProjection.
    """
    norms = None
    if isinstance(q_norm, FusedNorm) and isinstance(k_norm, FusedNorm):
        norms = q_norm.weight, k_norm.weight, q_norm.eps
    qkv = joined(wq, wk, wv) if norms is not None or q_norm is k_norm is None else None
    if qkv is None or not isinstance(rope, FusedRope):
        return HeadProjection(config, wq, wk, wv, rope, q_norm, k_norm)
    num_heads = config.num_attention_heads, config.num_key_value_heads

    def project_heads(x: mx.array, offset: int | list[int]) -> list[mx.array]:
        B, L, _ = x.shape
        first = rope.first_positions(offset, B, L, config.head_dim)
        return split_heads(qkv(x), *num_heads, rope.tables, norms, first, rope.traditional)

    return project_heads


def joined(*projections: Projection) -> Projection | None:
    """One projection with the outputs of all, concatenated; None if they are not packed alike."""
    packed = [each for each in projections if isinstance(each, PACKED)]
    layouts = {(type(each), each.matmul, each.weights.group_size, each.weights.bits) for each in packed}
    biases = [each.bias for each in packed if each.bias is not None]
    if len(packed) < len(projections) or len(layouts) > 1 or len(biases) not in (0, len(packed)):
        return None
    ((make, matmul, group_size, bits),) = layouts
    weight, scales, group_biases = (
        mx.concatenate([getattr(each.weights, name) for each in packed])
        for name in ("weight", "scales", "biases")
    )
    mx.eval(weight, scales, group_biases)
    weights = QuantizedWeights(weight, scales, group_biases, group_size, bits)
    return make(weights, mx.concatenate(biases) if biases else None, matmul)
