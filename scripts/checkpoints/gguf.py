"""Turn SmolLM2's GGUF file into a checkpoint folder that mlx-lm reads.

Nothing is quantized again: MLX reads the blocks of Q4_1 (4 bits) and Q8_0 (8 bits) as its own packed
weights with one scale and one bias for every 32 inputs. What differs is the names of the tensors, the
order of some rows, and that a GGUF keeps config and tokenizer as metadata.

Written for one file, whose hash `get_model` checks. Another one may hold what is not read here: other
types of tensors, scaled positions, a tokenizer that splits text into words in another way.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias, cast

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

Tensors: TypeAlias = dict[str, mx.array]
Metadata: TypeAlias = dict[str, Any]  # a scalar is an array without axes, a list of texts a list
JsonDict: TypeAlias = dict[str, object]

GROUP_SIZE = 32  # weights in one block, in Q4_1 and Q8_0 alike
BITS = 4  # of every matrix that config["quantization"] does not name
SPECIAL_TOKEN = 3  # llama.cpp's code in tokenizer.ggml.token_type
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}

LAYER_NAMES = {
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
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def convert_gguf(gguf_path: Path, out: Path) -> None:
    """Write a checkpoint folder for mlx-lm.

    Args:
        gguf_path: the file; its name ends in ".gguf".
        out: folder to write into, made if need be.
    """
    # Of the types that mx.load can return, this is the one for a GGUF with its metadata.
    raw, metadata = cast("tuple[Tensors, Metadata]", mx.load(str(gguf_path), return_metadata=True))
    tensors = convert_tensors(raw, metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {role: metadata[f"tokenizer.ggml.{name}_token_id"].item() for role, name in ROLES.items()}
    ids = {
        "bos_token_id": special["bos"],
        "pad_token_id": special["pad"],
        "eos_token_id": [tokens.index(token) for token in END_TOKENS],
    }

    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), tensors, metadata={"format": "mlx"})
    make_tokenizer(metadata).save(str(out / "tokenizer.json"))
    names = {f"{role}_token": tokens[token_id] for role, token_id in special.items()}
    write_json(out / "tokenizer_config.json", tokenizer_config(metadata) | names)
    write_json(out / "generation_config.json", ids)
    write_json(out / "config.json", model_config(metadata) | ids | {"quantization": quantization(tensors)})


def model_config(metadata: Metadata) -> JsonDict:
    """The part of config.json that the metadata decides."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata["llama.embedding_length"].item(),
        "num_hidden_layers": metadata["llama.block_count"].item(),
        "intermediate_size": metadata["llama.feed_forward_length"].item(),
        "num_attention_heads": metadata["llama.attention.head_count"].item(),
        "num_key_value_heads": metadata["llama.attention.head_count_kv"].item(),
        "head_dim": metadata["llama.rope.dimension_count"].item(),
        "rms_norm_eps": short(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": short(metadata["llama.rope.freq_base"]),
        "max_position_embeddings": metadata["llama.context_length"].item(),
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def short(value: mx.array) -> float:
    """A float32 as its shortest decimal: 1e-5 must not become 9.999999747378752e-06 by way of float64."""
    return float(str(np.array(value)))


def convert_tensors(tensors: Tensors, metadata: Metadata) -> Tensors:
    """Rename tensors from GGUF to mlx-lm and put the rows of q and k back in their order.

    Args:
        tensors: by GGUF name; a quantized matrix as `X.weight` (uint32, packed), `X.scales` and `X.biases`.
        metadata: of the file.
    """
    heads = {
        "attn_q": metadata["llama.attention.head_count"].item(),
        "attn_k": metadata["llama.attention.head_count_kv"].item(),
    }
    converted = {}
    for name, tensor in tensors.items():
        layer, part, kind = (
            name.removeprefix("blk.").rsplit(".", 2) if "blk." in name else ("", *name.split("."))
        )
        if part in heads:
            tensor = undo_row_order(tensor, heads[part])
        new_name = f"model.layers.{layer}.{LAYER_NAMES[part]}" if layer else TOP_NAMES[part]
        converted[f"{new_name}.{kind}"] = tensor
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


def quantization(tensors: Tensors) -> JsonDict:
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
    """The byte-level BPE tokenizer that the metadata describes."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in map(str.split, metadata["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    types = metadata["tokenizer.ggml.token_type"].tolist()
    specials = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def tokenizer_config(metadata: Metadata) -> JsonDict:
    """The part of tokenizer_config.json that names no token."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def write_json(path: Path, content: JsonDict) -> None:
    """Write one file of the checkpoint."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
