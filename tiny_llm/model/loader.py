"""Load a model from a checkpoint: find every tensor, check its shape, leave none over."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..ops.basics import Projection, as_projection
from ..ops.norm import Norm
from ..ops.positional_encoding import Rotation
from ..ops.quantize import QuantizedWeights
from .config import ModelConfig
from .embedding import Embedding, TokenEmbedding
from .operations import PLAIN_OPERATIONS, Operations
from .optional import once_written
from .qwen3 import Qwen3Model, Qwen3TransformerBlock


@dataclass(frozen=True)
class Quantization:
    """What config.json says of packed weights: the mode, with exceptions by layer."""

    config: dict[str, Any]

    @staticmethod
    def from_config(config: dict[str, Any]) -> "Quantization | None":
        """What config.json has under `quantization`, even an empty object; None if it has nothing or null."""
        raise NotImplementedError("week 1 day 5 task 6: Quantization.from_config is not written yet")

    def layout(
        self, layer: str, num_inputs: int, weight: mx.array, scales: mx.array, biases: mx.array | None
    ) -> tuple[int, int]:
        """Return the bits and the group size of a layer: the pair that fits its shapes.

        Each layer may have its own pair, and config.json doesn't name them all. So take only the mode from
        the settings, and the pair from the shapes.

        Args:
            layer: its name, without .weight.
            num_inputs: number of weights in a row.
            weight, scales, biases: its tensors in the checkpoint; None if it has no biases.

        Raises:
            ValueError: the `mode` of the `layer`, in its own entry or for all layers, is not affine; it has
                no biases; or no bits of `BITS` and group size of `GROUP_SIZES` fit the `num_inputs`.
        """
        raise NotImplementedError("week 1 day 5 task 6: Quantization.layout is not written yet")


class Tensors:
    """Hand out a checkpoint's tensors by name, check their shapes and types, and remember which were used.

    Args:
        tensors: arrays by their names in the checkpoint.
        quantization: how packed tensors are packed.
        dtype: type of everything but the codes; the checkpoint's by default.
        operations: make the parts. Packed weights stay packed if there is a `matmul` for them.
    """

    def __init__(
        self,
        tensors: dict[str, mx.array],
        quantization: Quantization | None = None,
        dtype: mx.Dtype | None = None,
        operations: Operations = PLAIN_OPERATIONS,
    ) -> None:
        self._tensors = dict(tensors)
        self._quantization = quantization
        self._dtype = dtype
        self.operations = operations

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> mx.array:
        """Remove and return a tensor, expanded if it is packed.

        Raises:
            ValueError: the tensor `name` is missing or was taken before; it has scales, but there is no
                quantization, or `layout` refuses its layer; or `check_tensor` refuses it.
        """
        raise NotImplementedError("week 1 day 5 task 6: Tensors.take is not written yet")

    def take_packed(self, layer: str, *shape: int) -> QuantizedWeights:
        """Remove and return the packed weight of a layer as it is.

        Args:
            layer: its name, without .weight.
            shape: (out, in) of the weight that is packed.

        Raises:
            ValueError: a tensor of the layer, `name`, is missing; the `layer` is packed otherwise; or its
                shape, `weights.shape`, is not `shape`.
        """
        raise NotImplementedError("week 2 day 2 task 4: Tensors.take_packed is not written yet")

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        """The product with a layer's weight, and its bias if it has one."""
        matmul, shape = self.operations.matmul, (num_outputs, num_inputs)
        if matmul is None or f"{layer}.scales" not in self:
            weight = self.take(f"{layer}.weight", *shape)
            return as_projection(weight, self.take(f"{layer}.bias", num_outputs) if bias else None)
        packed = self.take_packed(layer, *shape)
        own_bias = self.take(f"{layer}.bias", num_outputs) if bias else None
        return self.operations.projection(packed, own_bias, matmul)

    def take_embedding(self, layer: str, vocab_size: int, dim: int) -> TokenEmbedding:
        """The embedding whose weight is [vocab_size, dim]."""
        matmul, shape = self.operations.matmul, (vocab_size, dim)
        if matmul is None or f"{layer}.scales" not in self:
            return Embedding(*shape, self.take(f"{layer}.weight", *shape))
        return self.operations.embedding(*shape, self.take_packed(layer, *shape), matmul)

    def take_norm(self, layer: str, dim: int, eps: float) -> Norm:
        """The norm over `dim` dimensions."""
        return self.operations.norm(dim, self.take(f"{layer}.weight", dim), eps)

    def check_all_used(self, is_tied: bool) -> None:
        """Raise ValueError for a tensor that nothing used, by `name`: it belongs to a different model."""
        raise NotImplementedError("week 1 day 5 task 6: Tensors.check_all_used is not written yet")


@once_written
def check_tensor(name: str, tensor: mx.array, shape: tuple[int, ...]) -> None:
    """Refuse a plain or expanded tensor that does not fit the model.

    Raises:
        ValueError: the shape of the tensor `name`, `tensor.shape`, is not `shape`, or its type,
            `tensor.dtype`, is not float32, float16 or bfloat16.
    """
    raise NotImplementedError("week 1 day 5 task 7: check_tensor is not written yet")


def load_model(
    path: Path, dtype: mx.Dtype | None = None, operations: Operations = PLAIN_OPERATIONS
) -> Qwen3Model:
    """The model of a checkpoint folder.

    Args:
        path: the folder.
        dtype: type to compute in; the checkpoint's by default.
        operations: make the model's parts.

    Raises:
        ValueError: the checkpoint is missing, incomplete or not supported (as for `ModelConfig`); shows the
            `name` of the file, tensor or layer.
    """
    raise NotImplementedError("week 1 day 5 task 6: load_model is not written yet")


def build_mlp(config: ModelConfig, tensors: Tensors, name: str) -> Callable[[mx.array], mx.array]:
    """The MLP whose tensors start with `name`."""
    raise NotImplementedError("week 1 day 5 task 6: build_mlp is not written yet")


MakeMlp = Callable[[ModelConfig, Tensors, str], Callable[[mx.array], mx.array]]
"""`build_mlp`, or what builds another feed-forward half (day 4.2)."""


def build_model(config: ModelConfig, tensors: Tensors, make_mlp: MakeMlp = build_mlp) -> Qwen3Model:
    """Build a model from tensors under their checkpoint names, each block's MLP with `make_mlp`."""
    raise NotImplementedError("week 1 day 5 task 6: build_model is not written yet")


def build_block(
    config: ModelConfig, tensors: Tensors, name: str, rope: Rotation, make_mlp: MakeMlp = build_mlp
) -> Qwen3TransformerBlock:
    """The block whose tensors start with `name`. Call `make_mlp` with the name of its MLP."""
    raise NotImplementedError("week 1 day 5 task 6: build_block is not written yet")
