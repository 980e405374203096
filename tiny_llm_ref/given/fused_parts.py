"""Parts of a model by kernels: each extends the part of week 1 or 2 that it replaces.

What they need they hold under names of their own, since those of the parts are the learner's to choose.
"""

from collections.abc import Sequence

import mlx.core as mx

from ..kernels.dispatch_attention import can_merge, flash_attention_merged
from ..kernels.given.fused_operations import rms_norm, rotate, split_heads, swiglu, swiglu_halves
from ..kernels.given.integer_matmul import IntegerProjection
from ..model.config import ModelConfig
from ..model.kv_cache import TinyKvCache
from ..model.mlp import Qwen3MLP
from ..model.qwen3 import Qwen3MultiHeadAttention
from ..ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from ..ops.basics import Projection, as_projection
from ..ops.norm import RMSNorm
from ..ops.positional_encoding import RoPE, RopeScaling
from ..ops.quantize import QuantizedProjection, QuantizedWeights


class FusedRMSNorm(RMSNorm):
    """RMSNorm in one pass over memory."""

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        super().__init__(dim, weight, eps)
        self.fused_weight, self.fused_eps = weight, eps

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E]"""
        return rms_norm(x, self.fused_weight, self.fused_eps)


class FusedRoPE(RoPE):
    """RoPE in one pass over memory; what it turns by it learns from the RoPE that it extends."""

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__(dims, seq_len, base, traditional, scaling)
        self.fused_neighbours, self._fused_shape = traditional, (seq_len, dims)
        # A pair (1, 0) is turned into (cos, sin).
        ones, zeros = mx.ones((1, seq_len, 1, dims // 2)), mx.zeros((1, seq_len, 1, dims // 2))
        probe = mx.stack([ones, zeros], axis=-1 if traditional else -2).reshape(1, seq_len, 1, dims)
        turned = super().__call__(probe).reshape(seq_len, *((-1, 2) if traditional else (2, -1)))
        pair_axis = -1 if traditional else -2
        # In one block, or each call would arrange the whole table anew.
        self.fused_cos, self.fused_sin = (mx.contiguous(mx.take(turned, i, axis=pair_axis)) for i in (0, 1))

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """[B, L, H, D] -> [B, L, H, D], errors as for RoPE."""
        B, L, _, D = x.shape
        first = self.first_positions(offset, B, L)
        if not self.fused_covers(first, L, D):
            return super().__call__(x, offset)  # which knows the right error
        return rotate(x, self.fused_cos, self.fused_sin, first, self.fused_neighbours)

    def fused_covers(self, first_positions: list[int], L: int, D: int) -> bool:
        """Whether the tables hold L positions from each of the first on, for heads of D dimensions."""
        seq_len, dims = self._fused_shape
        return dims == D and min(first_positions) >= 0 and max(first_positions) + L <= seq_len


class FusedMLP(Qwen3MLP):
    """SwiGLU in one pass over memory, after one product for gate and up where they are packed alike."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        w_gate: mx.array | Projection,
        w_up: mx.array | Projection,
        w_down: mx.array | Projection,
    ) -> None:
        whole = joined([w_gate, w_up])
        if whole is not None:
            w_gate, w_up = cut_like(whole, [w_gate, w_up])
        super().__init__(dim, hidden_dim, w_gate, w_up, w_down)
        self._fused_gate_up = None if whole is None else prepared(whole)
        self._fused_gate, self._fused_up, self._fused_down = map(prepared, (w_gate, w_up, w_down))

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        if self._fused_gate_up is not None:
            return self._fused_down(swiglu_halves(self._fused_gate_up(x)))
        return self._fused_down(swiglu(self._fused_gate(x), self._fused_up(x)))


class FusedAttention(Qwen3MultiHeadAttention):
    """Self-attention whose queries, keys and values are one product, split and rotated in one pass.

    That takes projections packed alike and fused rotation and norms; with others it is the attention that it
    extends.
    """

    def __init__(
        self,
        config: ModelConfig,
        wq: mx.array | Projection,
        wk: mx.array | Projection,
        wv: mx.array | Projection,
        wo: mx.array | Projection,
        rope: RoPE,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        attention: Attention = scaled_dot_product_attention_grouped,
    ) -> None:
        self._fused_rope = rope if isinstance(rope, FusedRoPE) and are_fused(q_norm, k_norm) else None
        whole = None if self._fused_rope is None else joined([wq, wk, wv])
        if whole is not None:
            wq, wk, wv = cut_like(whole, [wq, wk, wv])
        super().__init__(config, wq, wk, wv, wo, rope, q_norm, k_norm, attention)
        self._fused_product = None if whole is None else prepared(whole)
        self._fused_out, self._fused_attend = prepared(wo), attention
        self._fused_sizes = (config.num_attention_heads, config.num_key_value_heads)
        self._fused_head_dim = config.head_dim
        self._fused_merges = can_merge(attention, config.head_dim)
        self._fused_norms = None
        if isinstance(q_norm, FusedRMSNorm) and isinstance(k_norm, FusedRMSNorm):
            self._fused_norms = (q_norm.fused_weight, k_norm.fused_weight, q_norm.fused_eps)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """[B, L, E] -> [B, L, E], arguments and errors as for the attention that it extends."""
        B, L, _ = x.shape
        heads = self._fused_heads(x, offset)
        if heads is None:
            return super().__call__(x, offset, cache, mask)
        query, key, value = heads
        attend = self._fused_attend_merged if self._fused_merges else self._fused_attend
        if cache is None:
            output = attend(query, key, value, mask=mask)
        else:
            output = cache.attend(query, key, value, attend, mask)
        if output.ndim == 4:  # [B, H_q, L, D], as a cache that attends by itself gives it
            output = output.swapaxes(1, 2).reshape(B, L, -1)
        return self._fused_out(output)

    def _fused_attend_merged(
        self, query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
    ) -> mx.array:
        """Attention whose heads lie side by side, [B, L, H_q x D]."""
        scale = self._fused_head_dim**-0.5 if scale is None else scale
        return flash_attention_merged(query, key, value, scale, mask)

    def _fused_heads(self, x: mx.array, offset: int | list[int]) -> list[mx.array] | None:
        """Query [B, H_q, L, D], key and value [B, H, L, D]; None where these parts cannot be fused."""
        B, L, _ = x.shape
        rope = self._fused_rope
        if self._fused_product is None or rope is None:
            return None
        first = rope.first_positions(offset, B, L)
        if not rope.fused_covers(first, L, self._fused_head_dim):
            return None  # it knows the right error
        tables = (rope.fused_cos, rope.fused_sin)
        product = self._fused_product(x)
        return split_heads(
            product, *self._fused_sizes, tables, self._fused_norms, first, rope.fused_neighbours
        )


def are_fused(q_norm: RMSNorm | None, k_norm: RMSNorm | None) -> bool:
    """Whether queries and keys have fused norms, or both none."""
    if q_norm is None or k_norm is None:
        return q_norm is k_norm
    return isinstance(q_norm, FusedRMSNorm) and isinstance(k_norm, FusedRMSNorm)


def prepared(projection: mx.array | Projection) -> Projection:
    """The projection as it is called fastest."""
    if isinstance(projection, QuantizedProjection) and IntegerProjection.fits(projection):
        return IntegerProjection(projection)
    return as_projection(projection)


def joined(projections: Sequence[mx.array | Projection]) -> QuantizedProjection | None:
    """One projection to the outputs of all, one after the other; None if they are not packed alike."""
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
    return QuantizedProjection(weights, mx.concatenate(biases) if biases else None, matmul)


def cut_like(
    joined: QuantizedProjection, projections: Sequence[mx.array | Projection]
) -> list[QuantizedProjection]:
    """The projections that were joined, as parts of what they were joined to: no weight is held twice."""
    parts, start = [], 0
    whole = joined.weights
    for each in projections:
        assert isinstance(each, QuantizedProjection)
        rows = slice(start, start + each.weights.shape[0])
        weights = QuantizedWeights(
            whole.weight[rows], whole.scales[rows], whole.biases[rows], whole.group_size, whole.bits
        )
        parts.append(QuantizedProjection(weights, each.bias, joined.matmul))
        start = rows.stop
    return parts
