"""Load a model from a checkpoint: find every tensor, check its shape, leave none over."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernel_runtime.checkpoint import read_json, read_tensors

from ..ops.basics import Projection, as_projection
from ..ops.norm import Norm
from ..ops.packing import BITS
from ..ops.positional_encoding import Rotation
from ..ops.quantize import GROUP_SIZES, QuantizedWeights
from .config import ModelConfig
from .embedding import Embedding, TokenEmbedding
from .operations import PLAIN_OPERATIONS, Operations
from .optional import once_written
from .qwen3 import Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock

FLOAT_TYPES = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True)
class Quantization:
    """What config.json says of packed weights: the mode, with exceptions by layer."""

    config: dict[str, Any]

    @staticmethod
    def from_config(config: dict[str, Any]) -> "Quantization | None":
        """What config.json has under `quantization`, even an empty object; None if it has nothing or null."""
        quantization = config.get("quantization")
        return None if quantization is None else Quantization(quantization)

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
        own = self.config.get(layer)
        settings = own if isinstance(own, dict) else self.config
        mode = settings.get("mode") or "affine"
        if mode != "affine":
            raise ValueError(
                f"{layer} is quantized in mode {mode!r}, but only 'affine' is supported: "
                "use a checkpoint quantized in mode 'affine'"
            )
        if biases is None:
            raise ValueError(
                f"the checkpoint lacks the tensor '{layer}.biases', which mode 'affine' needs: "
                "download or convert the checkpoint again"
            )
        is_matrix = weight.ndim == scales.ndim == 2
        for bits, group_size in product(BITS, GROUP_SIZES):
            sizes = (num_inputs * bits, num_inputs)
            if is_matrix and sizes == (weight.shape[1] * 32, scales.shape[1] * group_size):
                return bits, group_size
        raise ValueError(
            f"{layer} is not packed as mlx-lm packs rows of {num_inputs} weights: "
            f"the packed weight is {weight.shape}, the scales {scales.shape}"
        )


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
        layer = name.removesuffix(".weight")
        is_packed = f"{layer}.scales" in self
        tensor = mx.dequantize(*self._pop_packed(layer, shape[-1])) if is_packed else self._pop(name)
        check_tensor(name, tensor, shape)
        return tensor if self._dtype is None else tensor.astype(self._dtype)

    def take_packed(self, layer: str, *shape: int) -> QuantizedWeights:
        """Remove and return the packed weight of a layer as it is.

        Args:
            layer: its name, without .weight.
            shape: (out, in) of the weight that is packed.

        Raises:
            ValueError: a tensor of the layer, `name`, is missing; the `layer` is packed otherwise; or its
                shape, `weights.shape`, is not `shape`.
        """
        parts = self._pop_packed(layer, shape[-1])
        try:
            weights = QuantizedWeights(*parts)
        except ValueError as error:
            raise ValueError(f"{layer} cannot be read: {error}") from None
        if weights.shape != shape:
            raise ValueError(f"the layer {layer!r} has shape {weights.shape}, config.json asks for {shape}")
        return weights

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
        for name in self._tensors:
            is_spare_head = is_tied and name.startswith("lm_head.")
            if not is_spare_head and not name.endswith("rotary_emb.inv_freq"):
                raise ValueError(f"the checkpoint has a tensor that this model does not use: {name!r}")

    def _pop(self, name: str) -> mx.array:
        if name not in self:
            raise ValueError(f"the checkpoint lacks the tensor {name!r}")
        return self._tensors.pop(name)

    def _pop_packed(self, layer: str, num_inputs: int) -> tuple[mx.array, mx.array, mx.array, int, int]:
        """Codes, scales, biases, group size and bits of a layer."""
        if self._quantization is None:
            raise ValueError(f"{layer} is packed, but config.json says nothing of a quantization")
        weight, scales = self._pop(f"{layer}.weight"), self._pop(f"{layer}.scales")
        biases = self._tensors.pop(f"{layer}.biases", None)
        bits, group_size = self._quantization.layout(layer, num_inputs, weight, scales, biases)
        assert biases is not None  # `layout` refuses that
        if self._dtype is not None:
            # Cast before the product, or each weight would be rounded to the shorter type of the scales.
            scales, biases = scales.astype(self._dtype), biases.astype(self._dtype)
        return weight, scales, biases, group_size, bits


@once_written
def check_tensor(name: str, tensor: mx.array, shape: tuple[int, ...]) -> None:
    """Refuse a plain or expanded tensor that does not fit the model.

    Raises:
        ValueError: the shape of the tensor `name`, `tensor.shape`, is not `shape`, or its type,
            `tensor.dtype`, is not float32, float16 or bfloat16.
    """
    if tensor.dtype not in FLOAT_TYPES:
        raise ValueError(f"the tensor {name!r} is of type {tensor.dtype}, not float32, float16 or bfloat16")
    if tensor.shape != shape:
        raise ValueError(f"the tensor {name!r} has shape {tensor.shape}, config.json asks for {shape}")


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
    config_dict = read_json(path / "config.json")
    config = ModelConfig.from_dict(config_dict)
    tensors = Tensors(read_tensors(path), Quantization.from_config(config_dict), dtype, operations)
    model = build_model(config, tensors)
    tensors.check_all_used(model.head == model.embedding.as_linear)
    return model


def build_mlp(config: ModelConfig, tensors: Tensors, name: str) -> Callable[[mx.array], mx.array]:
    """The MLP whose tensors start with `name`."""
    E, hidden, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    return tensors.operations.mlp(
        E,
        hidden,
        tensors.take_projection(f"{name}.gate_proj", hidden, E, bias),
        tensors.take_projection(f"{name}.up_proj", hidden, E, bias),
        tensors.take_projection(f"{name}.down_proj", E, hidden, bias),
    )


MakeMlp = Callable[[ModelConfig, Tensors, str], Callable[[mx.array], mx.array]]
"""`build_mlp`, or what builds another feed-forward half (day 4.2)."""


def build_model(config: ModelConfig, tensors: Tensors, make_mlp: MakeMlp = build_mlp) -> Qwen3Model:
    """Build a model from tensors under their checkpoint names, each block's MLP with `make_mlp`."""
    E, V = config.hidden_size, config.vocab_size
    rope = tensors.operations.rope(
        config.head_dim,
        config.max_position_embeddings,
        config.rope_theta,
        config.rope_traditional,
        config.rope_scaling,
    )
    embedding = tensors.take_embedding("model.embed_tokens", V, E)
    layers = [
        build_block(config, tensors, f"model.layers.{i}", rope, make_mlp)
        for i in range(config.num_hidden_layers)
    ]
    is_tied = config.tie_word_embeddings
    if is_tied is None:
        is_tied = "lm_head.weight" not in tensors
    return Qwen3Model(
        config,
        embedding,
        layers,
        norm=tensors.take_norm("model.norm", E, config.rms_norm_eps),
        head=None if is_tied else tensors.take_projection("lm_head", V, E, bias=False),
    )


def build_block(
    config: ModelConfig, tensors: Tensors, name: str, rope: Rotation, make_mlp: MakeMlp = build_mlp
) -> Qwen3TransformerBlock:
    """The block whose tensors start with `name`. Call `make_mlp` with the name of its MLP."""
    E, D, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    q_size, kv_size = config.num_attention_heads * D, config.num_key_value_heads * D
    own = f"{name}.self_attn"
    return Qwen3TransformerBlock(
        attention=Qwen3MultiHeadAttention(
            config,
            wq=tensors.take_projection(f"{own}.q_proj", q_size, E, config.qkv_bias),
            wk=tensors.take_projection(f"{own}.k_proj", kv_size, E, config.qkv_bias),
            wv=tensors.take_projection(f"{own}.v_proj", kv_size, E, config.qkv_bias),
            wo=tensors.take_projection(f"{own}.o_proj", E, q_size, config.output_bias),
            rope=rope,
            q_norm=tensors.take_norm(f"{own}.q_norm", D, eps) if config.qk_norm else None,
            k_norm=tensors.take_norm(f"{own}.k_norm", D, eps) if config.qk_norm else None,
            attention=tensors.operations.attention,
            project_heads=tensors.operations.project_heads,
        ),
        mlp=make_mlp(config, tensors, f"{name}.mlp"),
        input_layernorm=tensors.take_norm(f"{name}.input_layernorm", E, eps),
        post_attention_layernorm=tensors.take_norm(f"{name}.post_attention_layernorm", E, eps),
    )
