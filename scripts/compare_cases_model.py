"""The inputs of `pdm run compare` for the model: week 1 day 5."""

from dataclasses import asdict
from types import ModuleType
from typing import Any

import mlx.core as mx

from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.compare_cases import (
    CONFIG,
    case,
    normal,
    small_attention,
    small_block,
    small_config,
    small_model,
    small_rope,
    token_ids,
    weights,
)
from scripts.compare_trees import Tree

# week 1 day 5


@case("embedding.Embedding")
def embedding(tiny: ModuleType) -> Tree:
    """Vectors, and as a head."""
    layer = tiny.Embedding(1031, 192, normal(1031, 192))
    vectors = layer(mx.array([token_ids(67, seed=1), token_ids(67, seed=2)]))
    return {"vectors": vectors, "logits": layer.as_linear(normal(2, 67, 192, seed=3))}


@case("qwen3.Qwen3MultiHeadAttention")
def self_attention(tiny: ModuleType) -> Tree:
    """Of a prompt."""
    return small_attention(tiny, 0)(normal(2, 127, CONFIG["hidden_size"]), offset=5)


@case("qwen3.Qwen3TransformerBlock")
def block(tiny: ModuleType) -> Tree:
    """Of a prompt."""
    return small_block(tiny, 1)(normal(2, 127, CONFIG["hidden_size"]))


@case("qwen3.Qwen3Model")
def model(tiny: ModuleType) -> Tree:
    """Logits of two prompts."""
    return small_model(tiny)(mx.array([token_ids(127), token_ids(127, seed=1)]))


@case("qwen3.Qwen3Model")
def model_with_few_logits(tiny: ModuleType) -> Tree:
    """Logits of the last 3."""
    return small_model(tiny)(mx.array([token_ids(127)]), logits_to_keep=3)


@case("config.ModelConfig.from_dict")
def configs(tiny: ModuleType) -> Tree:
    """Qwen3, Qwen2.5, Llama."""
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    changes: dict[str, dict[str, Any]] = {
        "qwen3": {
            "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}
        },
        "qwen2": {"model_type": "qwen2", "num_attention_heads": 4, "head_dim": None},
        "llama": {"model_type": "llama", "attention_bias": True, "rope_scaling": llama3},
    }
    from_dict = tiny.ModelConfig.from_dict
    return {name: asdict(from_dict({**CONFIG, **change})) for name, change in changes.items()}


@case("loader.Tensors")
def tensors(tiny: ModuleType) -> Tree:
    """Take, norm, projection."""
    held = tiny.loader.Tensors(weights(), dtype=mx.bfloat16)
    own, E, hidden = "model.layers.0", CONFIG["hidden_size"], CONFIG["intermediate_size"]
    up = held.take_projection(f"{own}.mlp.up_proj", hidden, E, bias=False)
    rows = held.take_norm(f"{own}.input_layernorm", E, 1e-5)(normal(31, E, dtype=mx.bfloat16))
    embedding = held.take("model.embed_tokens.weight", CONFIG["vocab_size"], E)
    is_left = [name in held for name in ("model.embed_tokens.weight", "model.norm.weight")]
    return {"projected": up(rows), "embedding": embedding, "is left": is_left}


@case("loader.Quantization")
def quantization(tiny: ModuleType) -> Tree:
    """4 bits, and 8 for one."""
    config = {"quantization": {"bits": 4, "group_size": 32, "lm_head": {"bits": 8, "group_size": 64}}}
    found = tiny.loader.Quantization.from_config(config)
    layers = (("mlp", 4, 32), ("lm_head", 8, 64))
    return {
        name: found.dequantize(name, *mx.quantize(normal(512, 256), group_size=size, bits=bits))
        for name, bits, size in layers
    }


@case("loader.build_mlp")
def built_mlp(tiny: ModuleType) -> Tree:
    """Of a layer."""
    layer = tiny.loader.build_mlp(small_config(tiny), tiny.loader.Tensors(weights()), "model.layers.1.mlp")
    return layer(normal(2, 67, CONFIG["hidden_size"]))


@case("loader.build_block")
def built_block(tiny: ModuleType) -> Tree:
    """Of a layer."""
    attention = tiny.attention.scaled_dot_product_attention_grouped
    held = tiny.loader.Tensors(weights())
    layer = tiny.loader.build_block(small_config(tiny), held, "model.layers.1", small_rope(tiny), attention)
    return layer(normal(2, 67, CONFIG["hidden_size"]))


@case("loader.build_model")
def built_model(tiny: ModuleType) -> Tree:
    """Of two layers."""
    built = tiny.loader.build_model(small_config(tiny), tiny.loader.Tensors(weights()))
    return built(mx.array([token_ids(67)]))


@case("loader.load_model")
def loaded_model(tiny: ModuleType) -> Tree:
    """The shipped checkpoint."""
    loaded = tiny.loader.load_model(resolve_checkpoint(SHIPPED_MODEL), mx.float32)
    return loaded(mx.array([token_ids(23)]), logits_to_keep=1)
