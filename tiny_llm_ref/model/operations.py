"""The table of operations that a model is built from: the code of each part, without its weights."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ..ops.attention import Attention, scaled_dot_product_attention_grouped
from ..ops.basics import Projection
from ..ops.experts import GroupedMatmul, grouped_matmul_simple
from ..ops.norm import Norm, RMSNorm
from ..ops.positional_encoding import RoPE, RopeScaling, Rotation
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights
from .embedding import QuantizedEmbedding
from .engine_operations import EngineOperations
from .mlp import Qwen3MLP
from .qwen3 import HeadProjection, ProjectHeads


@dataclass(frozen=True)
class Operations(EngineOperations):
    """The operations of a model, and those of the engine that runs it.

    The defaults are the parts of week 1; kernels replace them one by one.

    Args:
        norm: makes a norm from (dim, weight, eps).
        rope: makes the rotation that all layers share from (dims, seq_len, base, traditional, scaling).
        mlp: makes an MLP from (dim, hidden_dim, gate, up, down); the last three are projections.
        project_heads: makes what projects a layer's input to heads from the arguments of HeadProjection.
        attention: the attention function of every layer.
        matmul: multiplies by packed weights; if None, weights are expanded when loaded.
        projection: makes a projection with packed weights from (weights, bias, matmul).
        embedding: makes a packed embedding from (vocab_size, dim, weights, matmul).
        grouped_matmul: multiplies rows by the packed weights of their experts (day 4.2).
    """

    norm: Callable[[int, mx.array, float], Norm] = RMSNorm
    rope: Callable[[int, int, float, bool, RopeScaling | None], Rotation] = RoPE
    mlp: Callable[[int, int, Projection, Projection, Projection], Callable[[mx.array], mx.array]] = Qwen3MLP
    project_heads: Callable[..., ProjectHeads] = HeadProjection
    attention: Attention = scaled_dot_product_attention_grouped
    matmul: QuantizedMatmul | None = None
    projection: Callable[[QuantizedWeights, mx.array | None, QuantizedMatmul], Projection] = (
        QuantizedProjection
    )
    embedding: Callable[[int, int, QuantizedWeights, QuantizedMatmul], QuantizedEmbedding] = (
        QuantizedEmbedding
    )
    grouped_matmul: GroupedMatmul = grouped_matmul_simple


PLAIN_OPERATIONS = Operations()
