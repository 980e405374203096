"""Small random checkpoints of every family and switch, as mlx-lm itself would save them."""

import importlib
import json
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tests.support.causes import Mistakes

# Mutually different sizes, so that no swapped axis fits by chance.
BASE_CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 160,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Variant:
    """One checkpoint: a family, what differs from the base, and how mlx-lm is told if not the same way."""

    name: str
    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    oracle_changes: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, Any] | None = None
    dtype: mx.Dtype = mx.float32

    @property
    def config(self) -> dict[str, Any]:
        config = {"model_type": self.family, **BASE_CONFIG, **self.changes}
        if self.family == "qwen2":
            del config["head_dim"]  # Qwen2.5's heads have hidden_size / num_attention_heads dimensions
            config["num_attention_heads"], config["num_key_value_heads"] = 4, 2
        return {key: value for key, value in config.items() if value is not None}


def scaling(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": kind, **values}


LLAMA3 = scaling(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
)
YARN = scaling("yarn", factor=4.0, original_max_position_embeddings=128)
HALF_YARN = scaling("yarn", factor=2.0, original_max_position_embeddings=64, beta_fast=16, beta_slow=2)
VARIANTS = [
    Variant("qwen3", "qwen3"),
    Variant("qwen3-untied", "qwen3", {"tie_word_embeddings": False, "rms_norm_eps": 0.1}),
    Variant(
        "qwen3-rope-parameters",
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_theta": 7000.0, "rope_type": "default"}},
        oracle_changes={"rope_theta": 7000.0},  # mlx-lm's last release for Python 3.10 reads no other
    ),
    Variant("qwen3-yarn", "qwen3", {"rope_scaling": YARN}),
    Variant("qwen3-float16", "qwen3", dtype=mx.float16),
    Variant("qwen3-bfloat16", "qwen3", dtype=mx.bfloat16),
    Variant("qwen3-4bit", "qwen3", quantization={"group_size": 32, "bits": 4}),
    Variant("qwen3-8bit", "qwen3", quantization={"group_size": 64, "bits": 8}),
    Variant("qwen3-8bit-bfloat16", "qwen3", quantization={"group_size": 64, "bits": 8}, dtype=mx.bfloat16),
    Variant(
        "llama-mixed-bits",
        "llama",
        {"tie_word_embeddings": False},
        quantization={
            "group_size": 32,
            "bits": 4,
            "lm_head": {"group_size": 64, "bits": 8},
            "model.layers.1.mlp.down_proj": False,
        },
    ),
    Variant("qwen2", "qwen2"),
    Variant("qwen2-untied", "qwen2", {"tie_word_embeddings": False}),
    Variant("qwen2-4bit", "qwen2", quantization={"group_size": 32, "bits": 4}),
    Variant("llama", "llama"),
    Variant("llama-derived-head-dim", "llama", {"head_dim": None, "num_attention_heads": 4}),
    Variant("llama-one-kv-head-each", "llama", {"num_key_value_heads": None}),
    Variant("llama-attention-bias", "llama", {"attention_bias": True}),
    Variant("llama-mlp-bias", "llama", {"mlp_bias": True, "tie_word_embeddings": False}),
    Variant("llama-traditional", "llama", {"rope_traditional": True}),
    Variant("llama-llama3", "llama", {"rope_scaling": LLAMA3}),
    Variant(
        "llama-llama3-rope-parameters",
        "llama",
        {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 5000.0}},
        oracle_changes={"rope_theta": 5000.0, "rope_scaling": LLAMA3},
    ),
    Variant("llama-linear", "llama", {"rope_scaling": scaling("linear", factor=2.5)}),
    Variant("llama-yarn", "llama", {"rope_scaling": HALF_YARN}),
]

MOE: dict[str, Any] = {
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
MOE_VARIANTS = [
    Variant("moe", "qwen3_moe", MOE),
    Variant("moe-not-normalized", "qwen3_moe", {**MOE, "norm_topk_prob": False}),
    Variant("moe-untied", "qwen3_moe", {**MOE, "tie_word_embeddings": False}),
    Variant("moe-one-chosen", "qwen3_moe", {**MOE, "num_experts_per_tok": 1, "norm_topk_prob": False}),
    Variant("moe-dense-layer", "qwen3_moe", {**MOE, "mlp_only_layers": [1]}),
    Variant("moe-every-second", "qwen3_moe", {**MOE, "decoder_sparse_step": 2}),
    Variant("moe-bfloat16", "qwen3_moe", MOE, dtype=mx.bfloat16),
    Variant("moe-4bit", "qwen3_moe", MOE, quantization={"group_size": 32, "bits": 4}),
    Variant("moe-8bit", "qwen3_moe", MOE, quantization={"group_size": 32, "bits": 8}),
    Variant(
        "moe-mixed-bits",
        "qwen3_moe",
        MOE,
        quantization={
            "group_size": 32,
            "bits": 4,
            **{f"model.layers.{i}.mlp.gate": {"group_size": 64, "bits": 8} for i in range(3)},
            "model.layers.1.mlp.switch_mlp.down_proj": False,
        },
    ),
]
"""Mixtures of experts (day 4.2), so many that number 10 comes before number 9 in the alphabet."""


def build(variant: Variant, seed: int = 0) -> nn.Module:
    """mlx-lm's model with normal-distributed weights, quantized where the variant says so."""
    module = importlib.import_module(f"mlx_lm.models.{variant.family}")  # late: it takes a second
    config = {**variant.config, **variant.oracle_changes}
    model = module.Model(module.ModelArgs.from_dict(config))
    key = mx.random.key(seed)
    weights = []
    for name, value in tree_flatten(model.parameters()):
        key, draw = mx.random.split(key)
        noise = mx.random.normal(value.shape, key=draw)
        is_norm = value.ndim == 1 and "norm" in name
        weights.append((name, (1 + 0.2 * noise if is_norm else 0.1 * noise).astype(variant.dtype)))
    model.update(tree_unflatten(weights))
    if variant.quantization is not None:
        quantize(model, variant.quantization)
    mx.eval(model.parameters())
    return model


SWAPS = {
    "q_norm and k_norm swapped": ("self_attn", "q_norm", "k_norm"),
    "k_proj and v_proj swapped": ("self_attn", "k_proj", "v_proj"),
    "gate_proj and up_proj swapped": ("mlp", "gate_proj", "up_proj"),
    "input_layernorm and post_attention_layernorm swapped": (
        "",
        "input_layernorm",
        "post_attention_layernorm",
    ),
}
Change = tuple[Any, str, Any]
"""An object, its attribute, and another value of it."""


def loader_mistakes(oracle: Any, tokens: mx.array) -> Mistakes:
    """What mlx-lm's model gives when it is put together wrongly."""
    layers = oracle.model.layers
    ropes = [layer.self_attn.rope for layer in layers]
    plain = nn.RoPE(layers[0].self_attn.rope.dims, base=oracle.args.rope_theta)
    changes: dict[str, list[Change]] = {
        "the layers in reverse": [(oracle.model, "layers", layers[::-1])],
        "the first layer's tensors in every layer": [(oracle.model, "layers", [layers[0]] * len(layers))],
        "the embedding as head: this model has a head of its own": [
            (oracle.args, "tie_word_embeddings", True)
        ],
        "a rope_theta of 10000, not that of config.json": [(rope, "base", 10000.0) for rope in ropes],
        "rotations that are not scaled, nor traditional": [
            (layer.self_attn, "rope", plain) for layer in layers
        ],
    }
    for name, (part, first, second) in SWAPS.items():
        all_owners = [getattr(layer, part) if part else layer for layer in layers]
        if owners := [each for each in all_owners if hasattr(each, first)]:
            changes[name] = [
                change
                for each in owners
                for change in ((each, first, getattr(each, second)), (each, second, getattr(each, first)))
            ]
    changes |= moe_changes([layer.mlp for layer in layers if hasattr(layer.mlp, "switch_mlp")])
    return {
        f"the logits of a model with {name}": partial(logits_with, oracle, tokens, each)
        for name, each in changes.items()
    }


def moe_changes(mixtures: list[Any]) -> dict[str, list[Change]]:
    """What mistakes with mixtures of experts would change."""
    if not mixtures:
        return {}
    switches = [each.switch_mlp for each in mixtures]
    return {
        "the weights of the experts normalized where config.json says no, and not where it says yes": [
            (each, "norm_topk_prob", not each.norm_topk_prob) for each in mixtures
        ],
        "one expert per token": [(each, "top_k", 1) for each in mixtures],
        "gate_proj and up_proj of the experts swapped": [
            change
            for each in switches
            for change in ((each, "gate_proj", each.up_proj), (each, "up_proj", each.gate_proj))
        ],
    }


def logits_with(oracle: Any, tokens: mx.array, changes: list[Change]) -> mx.array:
    """Logits of a model some attributes of which are others for as long as it takes."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        with mx.stream(mx.cpu):
            logits: mx.array = oracle(tokens)
        mx.eval(logits)
        return logits
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def save_small_model(folder: Path) -> Path:
    """A checkpoint with the shipped one's tokenizer that costs a hundredth of it, for commands."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "vocab_size": 4096, "max_position_embeddings": 2048}
    variant = Variant("small", "qwen3", sizes, quantization={"group_size": 32, "bits": 4})
    save(variant, build(variant), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve_checkpoint(SHIPPED_MODEL) / name, folder)
    return folder


def quantize(model: nn.Module, quantization: dict[str, Any]) -> None:
    def choose(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        return quantization.get(path, hasattr(layer, "to_quantized"))

    nn.quantize(model, quantization["group_size"], quantization["bits"], class_predicate=choose)


def save(variant: Variant, model: nn.Module, folder: Path, num_shards: int = 1) -> Path:
    """Write config.json and the tensors, in one file or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(variant.config)
    if variant.quantization is not None:
        config["quantization"] = variant.quantization
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(model.parameters()))
    if num_shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        return folder
    names = sorted(weights)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::num_shards]}
        mx.save_safetensors(str(folder / file), part)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder
