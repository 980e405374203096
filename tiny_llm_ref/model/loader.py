"""From a checkpoint on disk to a model: every tensor found, its shape checked, none left over."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kernel_runtime.checkpoint import damage_refused, read_eos_token_ids, read_json, read_tensors

from ..ops.attention import Attention, scaled_dot_product_attention_grouped
from ..ops.basics import Projection, as_projection
from ..ops.norm import RMSNorm
from ..ops.positional_encoding import RoPE
from .config import ModelConfig
from .embedding import Embedding, QuantizedEmbedding
from .mlp import Qwen3MLP
from .qwen3 import Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

FLOAT_TYPES = (mx.float32, mx.float16, mx.bfloat16)


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
        quantization = config.get("quantization")
        if quantization is None and config.get("quantization_config") is not None:
            raise ValueError(
                "the checkpoint is quantized, but not in mlx-lm's layout: convert it with `mlx_lm.convert`"
            )
        return None if quantization is None else Quantization(quantization)

    def layout(
        self, layer: str, weight: mx.array, scales: mx.array, biases: mx.array | None
    ) -> tuple[int, int]:
        """Bits and group size of a layer; ValueError, with its name, if it is not packed like that."""
        override = self.config.get(layer)
        settings = override if isinstance(override, dict) else self.config
        bits, group_size = settings.get("bits", 4), settings.get("group_size", 64)
        mode = settings.get("mode", "affine")
        if mode != "affine" or biases is None:
            raise ValueError(f"{layer} is quantized in mode {mode!r} and only 'affine' is supported")
        is_matrix = weight.ndim == scales.ndim == 2
        if not is_matrix or weight.shape[-1] * 32 // bits != scales.shape[-1] * group_size:
            raise ValueError(
                f"{layer} is not packed as config.json says, {bits} bits in groups of {group_size}: "
                f"the packed weight is {weight.shape}, the scales {scales.shape}"
            )
        return bits, group_size

    def dequantize(self, layer: str, weight: mx.array, scales: mx.array, biases: mx.array | None) -> mx.array:
        """The plain weight [out, in] of packed uint32 values, group by group: scale x value + bias."""
        bits, group_size = self.layout(layer, weight, scales, biases)
        return mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits)


class Tensors:
    """A checkpoint's tensors, taken out by name, with shape and type checked and use recorded."""

    def __init__(
        self,
        tensors: dict[str, mx.array],
        quantization: Quantization | None = None,
        dtype: mx.Dtype | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self._quantization = quantization
        self._dtype = dtype

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> mx.array:
        """Remove and return a tensor; ValueError, with its name, if it is missing or not as expected."""
        if name not in self._tensors:
            raise ValueError(f"the checkpoint lacks the tensor {name!r}")
        tensor = self._tensors.pop(name)
        layer = name.removesuffix(".weight")
        scales = self._tensors.pop(f"{layer}.scales", None)
        if scales is not None:
            if self._quantization is None:
                raise ValueError(f"{layer} is packed, but config.json says nothing of a quantization")
            biases = self._tensors.pop(f"{layer}.biases", None)
            if self._dtype is not None and biases is not None:
                # Before the product, or each weight would be rounded to the shorter type of the scales.
                scales, biases = scales.astype(self._dtype), biases.astype(self._dtype)
            tensor = self._quantization.dequantize(layer, tensor, scales, biases)
        if tensor.dtype not in FLOAT_TYPES:
            raise ValueError(
                f"the tensor {name!r} is of type {tensor.dtype}: only float32, float16 and bfloat16 are"
            )
        if tensor.shape != shape:
            raise ValueError(f"the tensor {name!r} has shape {tensor.shape}, config.json asks for {shape}")
        return tensor if self._dtype is None else tensor.astype(self._dtype)

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        weight = self.take(f"{layer}.weight", num_outputs, num_inputs)
        return as_projection(weight, self.take(f"{layer}.bias", num_outputs) if bias else None)

    def take_embedding(self, layer: str, vocab_size: int, dim: int) -> Embedding | QuantizedEmbedding:
        return Embedding(vocab_size, dim, self.take(f"{layer}.weight", vocab_size, dim))

    def take_norm(self, layer: str, dim: int, eps: float, kind: type[RMSNorm] = RMSNorm) -> RMSNorm:
        return kind(dim, self.take(f"{layer}.weight", dim), eps)

    def check_all_used(self, is_tied: bool) -> None:
        """An unknown tensor means a model that computes something else: ValueError, with its name."""
        for name in self._tensors:
            is_spare_head = is_tied and name.startswith("lm_head.")
            if not is_spare_head and not name.endswith("rotary_emb.inv_freq"):
                raise ValueError(f"the checkpoint has a tensor that this model does not use: {name!r}")


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
    config_dict = read_json(path / "config.json")
    config = ModelConfig.from_dict(config_dict)
    tensors = make_tensors(read_tensors(path), Quantization.from_config(config_dict), dtype)
    model = build_model(config, tensors, attention, parts)
    tensors.check_all_used(model.head == model.embedding.as_linear)
    return model


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
    E, V = config.hidden_size, config.vocab_size
    rope = parts.rope(
        config.head_dim,
        config.max_position_embeddings,
        config.rope_theta,
        config.rope_traditional,
        config.rope_scaling,
    )
    embedding = tensors.take_embedding("model.embed_tokens", V, E)
    layers = [
        build_block(config, tensors, f"model.layers.{i}", rope, attention, parts)
        for i in range(config.num_hidden_layers)
    ]
    is_tied = config.tie_word_embeddings
    if is_tied is None:
        is_tied = "lm_head.weight" not in tensors
    return Qwen3Model(
        config,
        embedding,
        layers,
        norm=tensors.take_norm("model.norm", E, config.rms_norm_eps, parts.rms_norm),
        head=None if is_tied else tensors.take_projection("lm_head", V, E, bias=False),
    )


def build_block(
    config: ModelConfig,
    tensors: Tensors,
    name: str,
    rope: RoPE,
    attention: Attention,
    parts: Parts = PLAIN_PARTS,
) -> Qwen3TransformerBlock:
    """The block whose tensors start with `name`."""
    E, D, eps, norm = config.hidden_size, config.head_dim, config.rms_norm_eps, parts.rms_norm
    q_size, kv_size = config.num_attention_heads * D, config.num_key_value_heads * D
    own = f"{name}.self_attn"
    return Qwen3TransformerBlock(
        attention=parts.attention(
            config,
            wq=tensors.take_projection(f"{own}.q_proj", q_size, E, config.qkv_bias),
            wk=tensors.take_projection(f"{own}.k_proj", kv_size, E, config.qkv_bias),
            wv=tensors.take_projection(f"{own}.v_proj", kv_size, E, config.qkv_bias),
            wo=tensors.take_projection(f"{own}.o_proj", E, q_size, config.output_bias),
            rope=rope,
            q_norm=tensors.take_norm(f"{own}.q_norm", D, eps, norm) if config.qk_norm else None,
            k_norm=tensors.take_norm(f"{own}.k_norm", D, eps, norm) if config.qk_norm else None,
            attention=attention,
        ),
        mlp=build_mlp(config, tensors, f"{name}.mlp", parts),
        input_layernorm=tensors.take_norm(f"{name}.input_layernorm", E, eps, norm),
        post_attention_layernorm=tensors.take_norm(f"{name}.post_attention_layernorm", E, eps, norm),
    )


def build_mlp(config: ModelConfig, tensors: Tensors, name: str, parts: Parts = PLAIN_PARTS) -> Qwen3MLP:
    """The MLP whose tensors start with `name`."""
    E, hidden, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    return parts.mlp(
        E,
        hidden,
        w_gate=tensors.take_projection(f"{name}.gate_proj", hidden, E, bias),
        w_up=tensors.take_projection(f"{name}.up_proj", hidden, E, bias),
        w_down=tensors.take_projection(f"{name}.down_proj", E, hidden, bias),
    )
