"""Turn a quantized Llama in a GGUF file into a checkpoint folder that mlx-lm reads.

Nothing is quantized again: MLX reads the blocks of Q4_1 (4 bits) and Q8_0 (8 bits) as its own packed
weights with one scale and one bias for every 32 inputs. What differs is the names of the tensors, the
order of some rows, and that a GGUF keeps config and tokenizer as metadata.

Not for any GGUF: an architecture, tokenizer or tensor type that was not tested is refused.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

Tensors: TypeAlias = dict[str, mx.array]
JsonDict: TypeAlias = dict[str, object]

GROUP_SIZE = 32  # weights in one block, in Q4_1 and Q8_0 alike
BITS = 4  # of every matrix that config["quantization"] does not name
SPECIAL_TOKEN = 3  # llama.cpp's code in tokenizer.ggml.token_type
END_TOKENS = ("<|im_end|>", "<|endoftext|>")

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|scales|biases)")


class Metadata:
    """Typed look-ups in the metadata of a GGUF, which say what is missing or unexpected."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def integer(self, key: str) -> int:
        return int(np.array(self._array(key)).item())

    def number(self, key: str) -> float:
        # The file has float32: 1e-5 must not become 9.999999747378752e-06 on its way through float64.
        return float(str(np.float32(np.array(self._array(key)).item())))

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in np.array(self._array(key))]

    def text(self, key: str) -> str:
        value = self._get(key)
        if isinstance(value, str):
            return value
        raise ValueError(f"the GGUF's {key} should be text, got {type(value).__name__}")

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise ValueError(f"the GGUF's {key} should be a list of texts, got {type(value).__name__}")

    def expect(self, key: str, wanted: str) -> None:
        if (found := self.text(key)) != wanted:
            raise ValueError(f"the GGUF's {key} is {found!r}: only {wanted!r} can be converted")

    def _array(self, key: str) -> mx.array:
        value = self._get(key)
        if isinstance(value, mx.array):
            return value
        raise ValueError(f"the GGUF's {key} should be a number, got {type(value).__name__}")

    def _get(self, key: str) -> object:
        if key not in self._values:
            raise ValueError(f"the GGUF has no {key}: it may be damaged")
        return self._values[key]


def convert_gguf(gguf_path: Path, out: Path) -> None:
    """Write a GGUF file of a Llama with Q4_1 and Q8_0 matrices as a checkpoint folder for mlx-lm.

    Args:
        gguf_path: the file; its name ends in ".gguf".
        out: folder to write into, made if need be.

    Raises:
        ValueError: not a GGUF, or one with an architecture, tokenizer or tensor type that is not supported.
    """
    raw_tensors, metadata = read_gguf(gguf_path)
    tensors = convert_tensors(raw_tensors, metadata)
    _check_layers(tensors, metadata.integer("llama.block_count"))
    tokenizer = make_tokenizer(metadata)
    end_ids = end_token_ids(metadata)
    config = model_config(metadata) | {
        "eos_token_id": end_ids,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "quantization": quantization_config(tensors),
    }

    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), tensors, metadata={"format": "mlx"})
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(out / "tokenizer_config.json", tokenizer_config(metadata))
    _write_json(out / "generation_config.json", {**_special_ids(metadata), "eos_token_id": end_ids})
    _write_json(out / "config.json", config)


def read_gguf(path: Path) -> tuple[Tensors, Metadata]:
    """Read a GGUF file of the Llama architecture.

    Returns:
        tensors: by GGUF name; a quantized matrix as `X.weight` (uint32, packed), `X.scales` and `X.biases`.
        metadata: everything else that the file says.

    Raises:
        ValueError: the file is no GGUF, or not of a Llama.
    """
    try:
        # Of the types that mx.load can return, this is the one for a GGUF with its metadata.
        loaded = cast("tuple[Tensors, dict[str, object]]", mx.load(str(path), return_metadata=True))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a GGUF file: {error}") from error
    tensors, metadata = loaded[0], Metadata(loaded[1])
    metadata.expect("general.architecture", "llama")
    return tensors, metadata


def model_config(metadata: Metadata) -> JsonDict:
    """The part of config.json that the metadata decides.

    Raises:
        ValueError: the model scales its positions, or rotates only a part of each head.
    """
    if "llama.rope.scaling.type" in metadata and metadata.text("llama.rope.scaling.type") != "none":
        raise ValueError("the GGUF scales its positions (llama.rope.scaling): that is not supported")
    hidden_size = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    head_dim = metadata.integer("llama.rope.dimension_count")
    if head_dim * heads != hidden_size:
        raise ValueError(f"{heads} heads of {head_dim} do not make up the hidden size {hidden_size}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("llama.rope.freq_base"),
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        **_special_ids(metadata),
    }


def convert_tensors(tensors: Tensors, metadata: Metadata) -> Tensors:
    """Rename tensors from GGUF to mlx-lm and put the rows of q and k back in their order.

    Raises:
        ValueError: a tensor has an unknown name, or is neither a packed matrix nor a float32 norm.
    """
    heads = {
        "attn_q": metadata.integer("llama.attention.head_count"),
        "attn_k": metadata.integer("llama.attention.head_count_kv"),
    }
    converted = {}
    for name, tensor in tensors.items():
        match = _TENSOR_NAME.fullmatch(name)
        names = _LAYER_NAMES if match and match["layer"] else _TOP_NAMES
        if match is None or match["part"] not in names:
            raise ValueError(f"the GGUF has a tensor {name}, which a Llama has not: it cannot be converted")
        _check_type(name, tensors)
        part = match["part"]
        if part in heads:
            tensor = undo_row_order(tensor, heads[part])
        prefix = f"model.layers.{match['layer']}." if match["layer"] else ""
        converted[f"{prefix}{names[part]}.{match['kind']}"] = tensor
    return converted


def undo_row_order(rows: mx.array, heads: int) -> mx.array:
    """Put the rows of a q or k projection back in the order in which RoPE turns the two halves of a head.

    llama.cpp turns neighbours instead and so stores row i and row i + D/2 of each head side by side.
    Each row is packed by itself, so weights, scales and biases are all moved alike.

    Args:
        rows: [H * D, any].
        heads: H.

    Returns:
        rows: [H * D, any], reordered within each head.
    """
    num_rows, columns = rows.shape
    pairs = num_rows // heads // 2
    return rows.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(num_rows, columns)


def quantization_config(tensors: Tensors) -> JsonDict:
    """config["quantization"] as mlx-lm reads it: the common setting, then each layer that differs, by name.

    Args:
        tensors: by mlx-lm name.
    """
    config: JsonDict = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
    for name, scales in sorted(tensors.items()):
        layer, _, kind = name.rpartition(".")
        if kind == "scales":
            # A group of 32 weights of b bits fills exactly b words of 32 bits.
            bits = tensors[f"{layer}.weight"].shape[-1] // scales.shape[-1]
            if bits != BITS:
                config[layer] = {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
    return config


def make_tokenizer(metadata: Metadata) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes.

    Raises:
        ValueError: the text is split into words in another way than SmolLM's, or gets a token put in front.
    """
    metadata.expect("tokenizer.ggml.model", "gpt2")
    metadata.expect("tokenizer.ggml.pre", "smollm")
    for key in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        if f"tokenizer.ggml.{key}" in metadata and metadata.integer(f"tokenizer.ggml.{key}"):
            raise ValueError(f"the GGUF's tokenizer sets {key}: that is not supported")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    merges = [(left, right) for left, right in map(str.split, metadata.texts("tokenizer.ggml.merges"))]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    types = metadata.integers("tokenizer.ggml.token_type")
    specials = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def tokenizer_config(metadata: Metadata) -> JsonDict:
    """tokenizer_config.json: chat template, special tokens by name, longest input."""
    tokens = metadata.texts("tokenizer.ggml.tokens")
    special = {f"{role}_token": tokens[token_id] for role, token_id in _special_roles(metadata).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.integer("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        **special,
        "chat_template": metadata.text("tokenizer.chat_template"),
    }


def end_token_ids(metadata: Metadata) -> list[int]:
    """Ids that end a generation: the one the file names, and those that end a turn or a document."""
    tokens = metadata.texts("tokenizer.ggml.tokens")
    ends = [tokens.index(token) for token in END_TOKENS if token in tokens]
    return list(dict.fromkeys([metadata.integer("tokenizer.ggml.eos_token_id"), *ends]))


def _special_roles(metadata: Metadata) -> dict[str, int]:
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    present = {role: f"tokenizer.ggml.{key}_token_id" for role, key in keys.items()}
    return {role: metadata.integer(key) for role, key in present.items() if key in metadata}


def _special_ids(metadata: Metadata) -> JsonDict:
    return {f"{role}_token_id": i for role, i in _special_roles(metadata).items() if role in ("bos", "pad")}


def _check_type(name: str, tensors: Tensors) -> None:
    """Refuse what MLX read as another type: it turns block types it does not know into float16."""
    layer, _, kind = name.rpartition(".")
    weight = tensors[f"{layer}.weight"]
    is_norm = layer.endswith("norm") and weight.dtype == mx.float32 and weight.ndim == 1
    is_packed = weight.dtype == mx.uint32 and f"{layer}.scales" in tensors and f"{layer}.biases" in tensors
    if not (is_packed or (is_norm and kind == "weight")):
        raise ValueError(
            f"the GGUF's tensor {layer} came as {weight.dtype}: only norms in F32 "
            "and matrices in Q4_1 or Q8_0 can be converted"
        )


def _check_layers(tensors: Tensors, num_layers: int) -> None:
    wanted = {f"model.layers.{i}.{part}.weight" for i in range(num_layers) for part in _LAYER_NAMES.values()}
    wanted |= {f"{_TOP_NAMES[part]}.weight" for part in ("token_embd", "output_norm")}
    if missing := sorted(wanted - tensors.keys()):
        raise ValueError(f"the GGUF lacks {len(missing)} of its tensors, {missing[0]} first")


def _write_json(path: Path, content: JsonDict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
