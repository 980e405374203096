"""The shortest way from weights to a model that writes, for one kind of checkpoint; see loader.py for all."""

import mlx.core as mx

from ..ops.norm import RMSNorm
from ..ops.positional_encoding import RoPE
from .config import ModelConfig
from .embedding import Embedding
from .mlp import Qwen3MLP
from .qwen3 import Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock


def build_plain_model(config: ModelConfig, weights: dict[str, mx.array]) -> Qwen3Model:
    """Build a Qwen3 model whose head is its embedding, from plain weights. Nothing is checked.

    Args:
        config: sizes, `rms_norm_eps` and `rope_theta`.
        weights: arrays by their names in the checkpoint.
    """
    rope = RoPE(config.head_dim, config.max_position_embeddings, config.rope_theta)

    def norm(name: str) -> RMSNorm:
        weight = weights[f"{name}.weight"]
        return RMSNorm(weight.size, weight, config.rms_norm_eps)

    def projections(name: str, *parts: str) -> list[mx.array]:
        return [weights[f"{name}.{part}_proj.weight"] for part in parts]

    def block(name: str) -> Qwen3TransformerBlock:
        own = f"{name}.self_attn"
        wq, wk, wv, wo = projections(own, "q", "k", "v", "o")
        mlp = projections(f"{name}.mlp", "gate", "up", "down")
        return Qwen3TransformerBlock(
            Qwen3MultiHeadAttention(
                config, wq, wk, wv, wo, rope, norm(f"{own}.q_norm"), norm(f"{own}.k_norm")
            ),
            Qwen3MLP(config.hidden_size, config.intermediate_size, *mlp),
            norm(f"{name}.input_layernorm"),
            norm(f"{name}.post_attention_layernorm"),
        )

    embedding = Embedding(config.vocab_size, config.hidden_size, weights["model.embed_tokens.weight"])
    layers = [block(f"model.layers.{i}") for i in range(config.num_hidden_layers)]
    return Qwen3Model(config, embedding, layers, norm("model.norm"))
