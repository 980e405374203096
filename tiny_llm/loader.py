"""From a checkpoint on disk to a model: every tensor found, its shape checked, none left over."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .attention import Attention, scaled_dot_product_attention_grouped
from .basics import Projection
from .checkpoint import find_checkpoint, read_eos_token_ids
from .config import ModelConfig
from .layer_norm import RMSNorm
from .mlp import Qwen3MLP
from .positional_encoding import RoPE
from .qwen3 import Qwen3Model, Qwen3TransformerBlock

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def load(path_or_repo: str | Path, dtype: mx.Dtype | None = None) -> tuple[Qwen3Model, "TokenizerWrapper"]:
    """Load a model and its tokenizer.

    Args:
        path_or_repo: a checkpoint folder, or the name of a hub repository.
        dtype: type to compute in; that of the checkpoint unless given.

    Raises:
        ValueError: the checkpoint is not there, not complete or not supported.
    """
    path = find_checkpoint(path_or_repo)
    return load_model(path, dtype), load_tokenizer(path)


def load_model(
    path: Path, dtype: mx.Dtype | None = None, attention: Attention = scaled_dot_product_attention_grouped
) -> Qwen3Model:
    """The model of a checkpoint folder; arguments and errors as for `load`."""
    raise NotImplementedError("week 1 day 5 task 5: load_model is not written yet")


def load_tokenizer(path: Path) -> "TokenizerWrapper":
    """mlx-lm's tokenizer of a checkpoint folder, with every end-of-text id the checkpoint names."""
    from mlx_lm.tokenizer_utils import load as load_wrapper  # a second to import: only when needed

    if not any(
        (path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    ):
        raise ValueError(f"there is no tokenizer in {path}: a checkpoint needs its tokenizer.json")
    return load_wrapper(path, eos_token_ids=read_eos_token_ids(path) or None)


@dataclass(frozen=True)
class Quantization:
    """How mlx-lm packed the weights: bits and group size, with exceptions by layer."""

    config: dict[str, Any]

    @staticmethod
    def from_config(config: dict[str, Any]) -> "Quantization | None":
        raise NotImplementedError("week 1 day 5 task 5: Quantization.from_config is not written yet")

    def dequantize(self, layer: str, weight: mx.array, scales: mx.array, biases: mx.array | None) -> mx.array:
        """The plain weight [out, in] of packed uint32 values, group by group: scale x value + bias."""
        raise NotImplementedError("week 1 day 5 task 5: Quantization.dequantize is not written yet")


class Tensors:
    """A checkpoint's tensors, taken out by name, with shape and type checked and use recorded."""

    def __init__(
        self,
        tensors: dict[str, mx.array],
        quantization: Quantization | None = None,
        dtype: mx.Dtype | None = None,
    ) -> None:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.__init__ is not written yet")

    def __contains__(self, name: str) -> bool:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.__contains__ is not written yet")

    def take(self, name: str, *shape: int) -> mx.array:
        """Remove and return a plain or packed tensor; ValueError if it is missing or not as expected."""
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take is not written yet")

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take_projection is not written yet")

    def take_norm(self, layer: str, dim: int, eps: float) -> RMSNorm:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take_norm is not written yet")

    def check_all_used(self, is_tied: bool) -> None:
        """An unknown tensor means a model that computes something else: refuse it."""
        raise NotImplementedError("week 1 day 5 task 5: Tensors.check_all_used is not written yet")


def build_model(
    config: ModelConfig, tensors: Tensors, attention: Attention = scaled_dot_product_attention_grouped
) -> Qwen3Model:
    """Put a model together from tensors under their checkpoint names."""
    raise NotImplementedError("week 1 day 5 task 5: build_model is not written yet")


def build_block(
    config: ModelConfig, tensors: Tensors, name: str, rope: RoPE, attention: Attention
) -> Qwen3TransformerBlock:
    """The block whose tensors start with `name`."""
    raise NotImplementedError("week 1 day 5 task 5: build_block is not written yet")


def build_mlp(config: ModelConfig, tensors: Tensors, name: str) -> Qwen3MLP:
    """The MLP whose tensors start with `name`."""
    raise NotImplementedError("week 1 day 5 task 5: build_mlp is not written yet")
