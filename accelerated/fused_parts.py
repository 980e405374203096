"""Parts of a model that call kernels, each built and called like the part of week 1 that it replaces."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from tiny_llm.kernels.dispatch_attention import can_merge, flash_attention_merged
from tiny_llm.model.config import ModelConfig
from tiny_llm.model.kv_cache import TinyKvCache
from tiny_llm.model.qwen3 import Qwen3MultiHeadAttention, SelfAttention
from tiny_llm.model.sharded_loader import JoinedProjection
from tiny_llm.ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from tiny_llm.ops.basics import Projection
from tiny_llm.ops.norm import Norm
from tiny_llm.ops.positional_encoding import RoPE, RopeScaling, Rotation, rope_frequencies
from tiny_llm.ops.quantize import QuantizedProjection, QuantizedWeights

from .fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from .integer_matmul import IntegerProjection


@dataclass(frozen=True, eq=False)
class FusedNorm:
    """RMSNorm in one pass over memory."""

    dim: int
    weight: mx.array
    eps: float = 1e-5

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E]"""
        return rms_norm(x, self.weight, self.eps)


class FusedRope:
    """RoPE in one pass over memory."""

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        frequencies = scaling.frequencies(dims, base) if scaling else rope_frequencies(dims, base)
        amplitude = scaling.amplitude if scaling else 1.0
        angles = mx.arange(seq_len, dtype=mx.float32)[:, None] * frequencies[None, :]
        self.tables = mx.cos(angles) * amplitude, mx.sin(angles) * amplitude  # [seq_len, D / 2] each
        self.traditional = traditional

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """[B, L, H, D] -> [B, L, H, D], errors as for RoPE."""
        B, L, _, D = x.shape
        return rotate(x, *self.tables, self.first_positions(offset, B, L, D), self.traditional)

    def first_positions(self, offset: int | slice | list[int] | None, B: int, L: int, D: int) -> list[int]:
        """As for RoPE; ValueError unless the tables, of `dims` and `seq_len`, hold them for heads of `D`."""
        seq_len, num_pairs = self.tables[0].shape
        return checked_positions(offset, B, L, D, 2 * num_pairs, seq_len)


def checked_positions(
    offset: int | slice | list[int] | None, B: int, L: int, D: int, dims: int, seq_len: int
) -> list[int]:
    """`RoPE.first_positions`; ValueError unless `D` is `dims`, and all positions are below `seq_len`."""
    first = RoPE.first_positions(offset, B, L)
    if dims != D:
        raise ValueError(f"this RoPE rotates {dims} dimensions, x has {D}")
    if min(first) < 0 or max(first) + L > seq_len:
        last = max(first) + L - 1
        raise ValueError(f"positions {min(first)} to {last} are outside the {seq_len} of this RoPE")
    return first


def fused_mlp(
    dim: int, hidden_dim: int, w_gate: Projection, w_up: Projection, w_down: Projection
) -> Callable[[mx.array], mx.array]:
    """SwiGLU in one pass over memory, after one product for gate and up if they are packed alike.

    Raises:
        ValueError: `w_gate` and `w_up` are packed, and their shapes differ.
    """
    shapes = [each.weights.shape for each in (w_gate, w_up) if isinstance(each, QuantizedProjection)]
    if len(set(shapes)) > 1:
        raise ValueError(f"w_gate and w_up must have the same shape, got {shapes[0]} and {shapes[1]}")
    both, down = joined(w_gate, w_up), prepared(w_down)
    if both is not None:
        return lambda x: down(swiglu_halves(both(x)))
    gate, up = prepared(w_gate), prepared(w_up)
    return lambda x: down(swiglu(gate(x), up(x)))


def fused_attention(
    config: ModelConfig,
    wq: Projection,
    wk: Projection,
    wv: Projection,
    wo: Projection,
    rope: Rotation,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    attention: Attention = scaled_dot_product_attention_grouped,
) -> SelfAttention:
    """Self-attention that splits, normalizes and rotates in one pass after one product for q, k and v.

    It needs projections packed alike, a fused rotation, and fused norms or none. Otherwise this returns a
    Qwen3MultiHeadAttention.
    """
    norms = None
    if isinstance(q_norm, FusedNorm) and isinstance(k_norm, FusedNorm):
        norms = q_norm.weight, k_norm.weight, q_norm.eps
    qkv = joined(wq, wk, wv) if norms is not None or q_norm is k_norm is None else None
    if qkv is None or not isinstance(rope, FusedRope):
        return Qwen3MultiHeadAttention(config, wq, wk, wv, wo, rope, q_norm, k_norm, attention)
    project_back, head_dim = prepared(wo), config.head_dim
    num_heads = config.num_attention_heads, config.num_key_value_heads
    attend = flash_attention_merged if can_merge(attention, head_dim) else attention

    def attention_layer(
        x: mx.array, offset: int | list[int] = 0, cache: TinyKvCache | None = None, mask: Mask = "causal"
    ) -> mx.array:
        B, L, _ = x.shape
        first = rope.first_positions(offset, B, L, head_dim)
        query, key, value = split_heads(qkv(x), *num_heads, rope.tables, norms, first, rope.traditional)
        if cache is None:
            output = attend(query, key, value, mask=mask)
        else:
            output = cache.attend(query, key, value, attend, mask)
        if output.ndim == 4:  # [B, H_q, L, D]: heads not merged yet
            output = output.swapaxes(1, 2).reshape(B, L, -1)
        return project_back(output)

    return attention_layer


def prepared(projection: Projection) -> Projection:
    """The projection, as an IntegerProjection if possible; of a joined one (day 4.3), this rank's part."""
    if isinstance(projection, JoinedProjection):
        return replace(projection, own=prepared(projection.own))
    if isinstance(projection, QuantizedProjection) and IntegerProjection.fits(projection):
        return IntegerProjection(projection)
    return projection


def joined(*projections: Projection) -> Projection | None:
    """One projection with the outputs of all, concatenated; None if they are not packed alike."""
    packed = [each for each in projections if isinstance(each, QuantizedProjection)]
    layouts = {(each.weights.group_size, each.weights.bits, each.matmul) for each in packed}
    biases = [each.bias for each in packed if each.bias is not None]
    if len(packed) < len(projections) or len(layouts) > 1 or len(biases) not in (0, len(packed)):
        return None
    ((group_size, bits, matmul),) = layouts
    weight, scales, group_biases = (
        mx.concatenate([getattr(each.weights, name) for each in packed])
        for name in ("weight", "scales", "biases")
    )
    mx.eval(weight, scales, group_biases)
    weights = QuantizedWeights(weight, scales, group_biases, group_size, bits)
    return prepared(QuantizedProjection(weights, mx.concatenate(biases) if biases else None, matmul))
