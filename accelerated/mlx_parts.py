"""Parts of a model by MLX's own operations, each built and called like the part of week 1 it replaces."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout
from kernel_runtime.paged_check import checked
from tiny_llm.kernels.dispatch_attention import check_shapes
from tiny_llm.model.embedding import QuantizedEmbedding
from tiny_llm.ops.attention import Mask, scaled_dot_product_attention_grouped
from tiny_llm.ops.basics import Projection, silu
from tiny_llm.ops.quantize import QuantizedMatmul, QuantizedWeights

from .fused_parts import FastRope


@dataclass(frozen=True, eq=False)
class MlxNorm:
    """RMSNorm by `mx.fast.rms_norm`."""

    dim: int
    weight: mx.array
    eps: float = 1e-5

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E]"""
        return mx.fast.rms_norm(x, self.weight, self.eps).astype(x.dtype) if x.size else x


class MlxRope(FastRope):
    """RoPE by `mx.fast.rope`, which computes sines and cosines as it goes."""

    @cached_property
    def wavelengths(self) -> mx.array:
        """Positions per radian of each pair, [D / 2]."""
        return 1 / self.frequencies

    def __call__(self, x: mx.array, offset: int | slice | list[int] | None = None) -> mx.array:
        """[B, L, H, D] -> [B, L, H, D], errors as for RoPE."""
        B, L, _, D = x.shape
        first = self.first_positions(offset, B, L, D)
        if x.size == 0:
            return x
        turned = mx.fast.rope(
            x.swapaxes(1, 2) * self.amplitude if self.amplitude != 1 else x.swapaxes(1, 2),
            D,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=first[0] if len(first) == 1 else mx.array(first),
            freqs=self.wavelengths,
        )
        return turned.swapaxes(1, 2)


class MlxEmbedding(QuantizedEmbedding):
    """A packed embedding by `mx.dequantize`, which on a GPU is a single kernel."""

    def __init__(
        self, vocab_size: int, embedding_dim: int, weights: QuantizedWeights, matmul: QuantizedMatmul
    ) -> None:
        super().__init__(vocab_size, embedding_dim, weights, matmul)
        self._table = weights

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        table, ids = self._table, tokens.reshape(-1)
        weight, scales, biases = (x[ids] for x in (table.weight, table.scales, table.biases))
        rows = mx.dequantize(weight, scales, biases, table.group_size, table.bits)
        return rows.reshape(*tokens.shape, table.shape[1])


def mlx_matmul(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """`quantized_matmul_simple` by `mx.quantized_matmul`; ValueError for an `x` of other inputs."""
    if x.shape[-1] != weights.shape[1]:
        raise ValueError(
            f"weights of shape {weights.shape} need x of [..., {weights.shape[1]}], got {x.shape}"
        )
    return mx.quantized_matmul(
        x,
        weights.weight,
        weights.scales,
        weights.biases,
        transpose=True,
        group_size=weights.group_size,
        bits=weights.bits,
    )


def mlx_attention(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """`scaled_dot_product_attention_grouped` by MLX's; four axes, ValueError as for `dispatch_attention`."""
    if query.ndim != 4 or query.size == 0 or key.size == 0:
        return scaled_dot_product_attention_grouped(query, key, value, scale, mask)
    check_shapes(query, key, value, mask)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if isinstance(mask, mx.array):
        mask = mask.astype(query.dtype)
    output = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
    return output.astype(query.dtype)


@checked
def mlx_paged_attention(
    query: mx.array, keys: mx.array, values: mx.array, layout: BlockLayout, scale: float | None = None
) -> mx.array:
    """`paged_attention_simple` by MLX's attention on copies of the blocks.

    Arguments, result and ValueError are those of `paged_attention_simple`.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    tables, starts, lengths = layout.numbers()
    num_queries, block_size = np.diff(starts), keys.shape[1]
    rows, outputs = [], []
    for L in np.unique(num_queries):
        alike = np.flatnonzero(num_queries == L)
        contexts = lengths[alike, None]
        S = contexts.max()
        positions = np.where(np.arange(S) < contexts, np.arange(S), 0)  # a masked key must be a number
        blocks = np.take_along_axis(tables[alike], positions // block_size, axis=1)
        slots = mx.array(blocks * block_size + positions % block_size)
        key, value = (x.reshape(-1, *x.shape[2:])[slots].swapaxes(1, 2) for x in (keys, values))
        is_visible = np.arange(S) <= (contexts - L + np.arange(L))[:, None, :, None]  # [n, 1, L, S]
        mask = "causal" if contexts.min() == S else mx.array(is_visible)
        own = starts[alike, None] + np.arange(L)
        attended = mx.fast.scaled_dot_product_attention(
            query[mx.array(own)].swapaxes(1, 2), key, value, scale=scale, mask=mask
        )
        rows.append(own.reshape(-1))
        outputs.append(attended.swapaxes(1, 2).reshape(-1, *query.shape[1:]))
    order = mx.array(np.argsort(np.concatenate(rows)))
    return mx.concatenate(outputs)[order].astype(query.dtype)


@partial(mx.compile, shapeless=True)
def gated(gate: mx.array, up: mx.array) -> mx.array:
    """SwiGLU's product, compiled into one operation."""
    return silu(gate) * up


def mlx_mlp(
    dim: int, hidden_dim: int, w_gate: Projection, w_up: Projection, w_down: Projection
) -> Callable[[mx.array], mx.array]:
    """SwiGLU, its gate compiled by `mx.compile`."""
    return lambda x: w_down(gated(w_gate(x), w_up(x)))
