"""From a checkpoint on disk to a model: every tensor found, its shape checked, none left over."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kernel_runtime.checkpoint import damage_refused, read_eos_token_ids

from ..ops.attention import Attention, scaled_dot_product_attention_grouped
from ..ops.basics import Projection
from ..ops.norm import RMSNorm
from ..ops.positional_encoding import RoPE
from .config import ModelConfig
from .embedding import Embedding, QuantizedEmbedding
from .mlp import Qwen3MLP
from .qwen3 import Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class Quantization:
    """How mlx-lm packed the weights: bits and group size, with exceptions by layer."""

    config: dict[str, Any]

    @staticmethod
    def from_config(config: dict[str, Any]) -> "Quantization | None":
        """What config.json says of packed weights, None for plain ones.

        Raises:
            ValueError: the checkpoint is quantized, but not in mlx-lm's layout.
        """
        raise NotImplementedError("week 1 day 5 task 5: Quantization.from_config is not written yet")

    def layout(
        self, layer: str, weight: mx.array, scales: mx.array, biases: mx.array | None
    ) -> tuple[int, int]:
        """Bits and group size of a layer; ValueError, with its name, if it is not packed like that."""
        raise NotImplementedError("week 1 day 5 task 5: Quantization.layout is not written yet")

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
        """Remove and return a tensor; ValueError, with its name, if it is missing or not as expected."""
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take is not written yet")

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take_projection is not written yet")

    def take_embedding(self, layer: str, vocab_size: int, dim: int) -> Embedding | QuantizedEmbedding:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take_embedding is not written yet")

    def take_norm(self, layer: str, dim: int, eps: float, kind: type[RMSNorm] = RMSNorm) -> RMSNorm:
        raise NotImplementedError("week 1 day 5 task 5: Tensors.take_norm is not written yet")

    def check_all_used(self, is_tied: bool) -> None:
        """An unknown tensor means a model that computes something else: ValueError, with its name."""
        raise NotImplementedError("week 1 day 5 task 5: Tensors.check_all_used is not written yet")


@dataclass(frozen=True)
class Parts:
    """The kinds of parts that a model is put together from; later days bring faster ones."""

    rms_norm: type[RMSNorm] = RMSNorm
    rope: type[RoPE] = RoPE
    mlp: type[Qwen3MLP] = Qwen3MLP
    attention: type[Qwen3MultiHeadAttention] = Qwen3MultiHeadAttention


PLAIN_PARTS = Parts()
MakeTensors = Callable[[dict[str, mx.array], Quantization | None, mx.Dtype | None], Tensors]
"""Makes a checkpoint's tensors what a model can be built from: `Tensors` itself, or a later kind of it."""


def load_model(
    path: Path,
    dtype: mx.Dtype | None = None,
    attention: Attention = scaled_dot_product_attention_grouped,
    make_tensors: MakeTensors = Tensors,
    parts: Parts = PLAIN_PARTS,
) -> Qwen3Model:
    """The model of a checkpoint folder.

    Args:
        path: the folder.
        dtype: type to compute in; that of the checkpoint unless given.
        attention: the function that attends.
        make_tensors: makes what the model is taken out of; a later day keeps packed weights packed there.
        parts: the kinds of parts to put together.

    Raises:
        ValueError: the checkpoint is not there, not complete or not supported.
    """
    raise NotImplementedError("week 1 day 5 task 5: load_model is not written yet")


def load_tokenizer(path: Path) -> "TokenizerWrapper":
    """mlx-lm's tokenizer of a checkpoint folder, with every end-of-text id the checkpoint names.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    from mlx_lm.tokenizer_utils import load as load_wrapper  # a second to import: only when needed

    if not any(
        (path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    ):
        raise ValueError(f"there is no tokenizer in {path}: a checkpoint needs its tokenizer.json")
    eos_token_ids = read_eos_token_ids(path) or None
    with damage_refused(f"the tokenizer in {path}"):
        tokenizer = load_wrapper(path, eos_token_ids=eos_token_ids)
        tokenizer.decode(tokenizer.encode("a"))  # which some damage shows only in
    return tokenizer


def build_model(
    config: ModelConfig,
    tensors: Tensors,
    attention: Attention = scaled_dot_product_attention_grouped,
    parts: Parts = PLAIN_PARTS,
) -> Qwen3Model:
    """Put a model together from tensors under their checkpoint names, of parts of the given kinds."""
    raise NotImplementedError("week 1 day 5 task 5: build_model is not written yet")


def build_block(
    config: ModelConfig,
    tensors: Tensors,
    name: str,
    rope: RoPE,
    attention: Attention,
    parts: Parts = PLAIN_PARTS,
) -> Qwen3TransformerBlock:
    """The block whose tensors start with `name`."""
    raise NotImplementedError("week 1 day 5 task 5: build_block is not written yet")


def build_mlp(config: ModelConfig, tensors: Tensors, name: str, parts: Parts = PLAIN_PARTS) -> Qwen3MLP:
    """The MLP whose tensors start with `name`."""
    raise NotImplementedError("week 1 day 5 task 5: build_mlp is not written yet")
