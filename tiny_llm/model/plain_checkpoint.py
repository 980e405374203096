"""The shipped checkpoint as plain arrays, for the first loader of day 1.5."""

from dataclasses import fields
from pathlib import Path

import mlx.core as mx

from kernel_runtime.checkpoint import read_json, read_tensors

from .config import ModelConfig

NOT_PLAIN = ("attention_bias", "rope_scaling", "rope_parameters", "use_sliding_window")


def read_plain_checkpoint(
    path: Path, dtype: mx.Dtype | None = None
) -> tuple[ModelConfig, dict[str, mx.array]]:
    """Sizes and weights of a Qwen3 model whose head is tied, such as the shipped one.

    Args:
        path: the checkpoint's folder.
        dtype: type of the weights; the checkpoint's by default.

    Returns:
        config: its sizes.
        weights: by their names in the checkpoint; those that are packed there are expanded.

    Raises:
        ValueError: the checkpoint is damaged, or of another kind.
    """
    content = read_json(path / "config.json")
    is_tied_qwen3 = content.get("model_type") == "qwen3" and content.get("tie_word_embeddings")
    if not is_tied_qwen3 or any(content.get(key) for key in NOT_PLAIN):
        raise ValueError(f"the plain loader reads Qwen3 models with a tied head, and {path.name} is none")
    sizes = {field.name: content[field.name] for field in fields(ModelConfig) if field.name in content}
    weights = read_tensors(path)
    for layer in [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]:
        weight, scales, biases = (weights.pop(f"{layer}.{part}") for part in ("weight", "scales", "biases"))
        packing = content["quantization"]
        weights[f"{layer}.weight"] = mx.dequantize(
            weight, scales, biases, packing.get("group_size"), packing.get("bits")
        )
    if dtype is not None:
        weights = {name: weight.astype(dtype) for name, weight in weights.items()}
    return ModelConfig(**sizes, qk_norm=True), weights
