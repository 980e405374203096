"""The table of operations that a model is built from: what runs for each part, and nothing of its weights."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ...ops.attention import Attention, scaled_dot_product_attention_grouped
from ...ops.basics import Projection
from ...ops.norm import Norm, RMSNorm
from ...ops.positional_encoding import RoPE, RopeScaling, Rotation
from ...ops.quantize import QuantizedMatmul
from ..mlp import Qwen3MLP
from ..qwen3 import Qwen3MultiHeadAttention, SelfAttention


@dataclass(frozen=True)
class Operations:
    """What a model computes with. The defaults are your own parts; kernels take their places one by one.

    Args:
        norm: makes a norm of (dim, weight, eps).
        rope: makes the rotation that all layers share of (dims, seq_len, base, traditional, scaling).
        mlp: makes an MLP of (dim, hidden_dim, gate, up, down), the last three projections.
        attention_layer: makes the self-attention of a layer, with the arguments of Qwen3MultiHeadAttention.
        attention: the function by which every layer attends.
        matmul: the product with packed weights, which then stay packed; None expands them at loading.
    """

    norm: Callable[[int, mx.array, float], Norm] = RMSNorm
    rope: Callable[[int, int, float, bool, RopeScaling | None], Rotation] = RoPE
    mlp: Callable[[int, int, Projection, Projection, Projection], Callable[[mx.array], mx.array]] = Qwen3MLP
    attention_layer: Callable[..., SelfAttention] = Qwen3MultiHeadAttention
    attention: Attention = scaled_dot_product_attention_grouped
    matmul: QuantizedMatmul | None = None


PLAIN_OPERATIONS = Operations()
