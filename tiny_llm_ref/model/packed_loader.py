"""A checkpoint's packed weights, kept packed from the file to the product."""

from functools import partial
from pathlib import Path

import mlx.core as mx

from ..ops.attention import Attention, scaled_dot_product_attention_grouped
from ..ops.basics import Projection
from ..ops.quantize import QuantizedMatmul, QuantizedProjection, QuantizedWeights, quantized_matmul_simple
from .embedding import Embedding, QuantizedEmbedding
from .loader import PLAIN_PARTS, Parts, Quantization, Tensors, load_model
from .qwen3 import Qwen3Model


class PackedTensors(Tensors):
    """Tensors whose packed projections and embedding are handed out packed, the others as ever.

    Args:
        tensors: arrays by their names in the checkpoint.
        quantization: how the packed ones are packed.
        dtype: type of what is not codes; scales and biases are cast as well, so that the products have it.
        matmul: the product with packed weights.

    Raises:
        ValueError: a layer is not packed as the quantization says.
    """

    def __init__(
        self,
        tensors: dict[str, mx.array],
        quantization: Quantization | None = None,
        dtype: mx.Dtype | None = None,
        matmul: QuantizedMatmul = quantized_matmul_simple,
    ) -> None:
        layers = [name.removesuffix(".scales") for name in tensors if name.endswith(".scales")]
        self._packed = {layer: _read_packed(layer, tensors, quantization, dtype) for layer in layers}
        self._matmul = matmul
        parts = {f"{layer}.{part}" for layer in layers for part in ("weight", "scales", "biases")}
        plain = {name: tensor for name, tensor in tensors.items() if name not in parts}
        super().__init__(plain, quantization, dtype)

    def __contains__(self, name: str) -> bool:
        return name.removesuffix(".weight") in self._packed or super().__contains__(name)

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        if layer not in self._packed:
            return super().take_projection(layer, num_outputs, num_inputs, bias)
        weights = self._take_packed(layer, num_outputs, num_inputs)
        return QuantizedProjection(
            weights, self.take(f"{layer}.bias", num_outputs) if bias else None, self._matmul
        )

    def take_embedding(self, layer: str, vocab_size: int, dim: int) -> Embedding | QuantizedEmbedding:
        if layer not in self._packed:
            return super().take_embedding(layer, vocab_size, dim)
        return QuantizedEmbedding(vocab_size, dim, self._take_packed(layer, vocab_size, dim), self._matmul)

    def check_all_used(self, is_tied: bool) -> None:
        super().check_all_used(is_tied)
        for layer in self._packed:
            if not (is_tied and layer == "lm_head"):
                raise ValueError(f"the checkpoint has a layer that this model does not use: {layer!r}")

    def _take_packed(self, layer: str, *shape: int) -> QuantizedWeights:
        weights = self._packed.pop(layer)
        if weights.shape != shape:
            raise ValueError(f"the layer {layer!r} has shape {weights.shape}, config.json asks for {shape}")
        return weights


def load_packed_model(
    path: Path,
    dtype: mx.Dtype | None = None,
    attention: Attention = scaled_dot_product_attention_grouped,
    matmul: QuantizedMatmul = quantized_matmul_simple,
    parts: Parts = PLAIN_PARTS,
) -> Qwen3Model:
    """The model of a checkpoint folder, its packed weights left packed.

    Args:
        path: the folder.
        dtype: type to compute in; that of the checkpoint unless given.
        attention: the function that attends.
        matmul: the product with packed weights.
        parts: the kinds of parts to put together.

    Raises:
        ValueError: the checkpoint is not there, not complete or not supported.
    """
    return load_model(path, dtype, attention, partial(PackedTensors, matmul=matmul), parts)


def _read_packed(
    layer: str, tensors: dict[str, mx.array], quantization: Quantization | None, dtype: mx.Dtype | None
) -> QuantizedWeights:
    """The three tensors of a layer as one."""
    if quantization is None:
        raise ValueError(f"{layer} is packed, but config.json says nothing of a quantization")
    if f"{layer}.weight" not in tensors:
        raise ValueError(f"the checkpoint lacks the tensor '{layer}.weight'")
    weight, scales = tensors[f"{layer}.weight"], tensors[f"{layer}.scales"]
    biases = tensors.get(f"{layer}.biases")
    bits, group_size = quantization.layout(layer, weight, scales, biases)
    assert biases is not None  # or there would be no layout
    if dtype is not None:
        scales, biases = scales.astype(dtype), biases.astype(dtype)
    try:
        return QuantizedWeights(weight, scales, biases, group_size, bits)
    except ValueError as error:
        raise ValueError(f"{layer} cannot be read: {error}") from None
