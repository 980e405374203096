"""SmolLM2's conversion keeps weights, config and tokenizer, tried on a tiny Llama."""

import json
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from scripts.checkpoints import gguf
from tests.support.gguf import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    TOKENS,
    Array,
    llama_logits,
    tiny_weights,
    write_tiny_gguf,
)


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    gguf.convert_gguf(write_tiny_gguf(folder / "tiny.gguf"), folder / "checkpoint")
    return folder / "checkpoint"


def dequantized(folder: Path, layer: str, bits: int) -> Array:
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    scales, biases = (tensors[f"{layer}.{kind}"].astype(mx.float32) for kind in ("scales", "biases"))
    with mx.stream(mx.cpu):
        return np.array(mx.dequantize(tensors[f"{layer}.weight"], scales, biases, group_size=32, bits=bits))


def test_conversion_keeps_every_weight(tiny_checkpoint: Path) -> None:
    raw = tiny_weights()
    for part, name in (
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_down", "mlp.down_proj"),
    ):
        got = dequantized(tiny_checkpoint, f"model.layers.1.{name}", 4)
        np.testing.assert_allclose(got, raw[f"blk.1.{part}.weight"], rtol=0, atol=1e-6, err_msg=part)
    got = dequantized(tiny_checkpoint, "model.embed_tokens", 8)
    np.testing.assert_allclose(got, raw["token_embd.weight"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("part", "name", "heads"), [("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)]
)
def test_conversion_undoes_the_row_order_of_q_and_k(
    tiny_checkpoint: Path, part: str, name: str, heads: int
) -> None:
    raw, half = tiny_weights()[f"blk.1.{part}.weight"], HEAD_DIM // 2
    got = dequantized(tiny_checkpoint, f"model.layers.1.self_attn.{name}", 4)
    for head in range(heads):
        for i in range(half):
            first, partner = head * HEAD_DIM + i, head * HEAD_DIM + half + i
            np.testing.assert_allclose(got[first], raw[head * HEAD_DIM + 2 * i], atol=1e-6)
            np.testing.assert_allclose(got[partner], raw[head * HEAD_DIM + 2 * i + 1], atol=1e-6)


def test_converted_model_gives_the_logits_of_the_gguf(tiny_checkpoint: Path) -> None:
    model = mlx_lm.load(str(tiny_checkpoint))[0]
    tokens = [7, 5, 201, 89, 3, 7, 151]
    with mx.stream(mx.cpu):
        got = np.array(model(mx.array([tokens]))[0].astype(mx.float32))
    wanted = llama_logits(tiny_weights(), tokens)
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(got, wanted, atol=2e-3 * np.abs(wanted).max())


def test_conversion_writes_the_config_of_the_file(tiny_checkpoint: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"]) == (
        2,
        6,
        3,
    )
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (192, 160, 32)
    assert (config["rms_norm_eps"], config["rope_theta"], config["max_position_embeddings"]) == (
        1e-5,
        5000,
        131,
    )
    assert config["vocab_size"] == len(TOKENS)
    assert config["tie_word_embeddings"] is True
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
    }
    generation = json.loads((tiny_checkpoint / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_converted_tokenizer_splits_and_joins_text(tiny_checkpoint: Path) -> None:
    tokenizer = mlx_lm.load(str(tiny_checkpoint))[1]
    wanted = ["i", "Ġthe", "Ġ", "1", "2", "Ġ", "in", "<|im_end|>"]
    assert tokenizer.encode("i the 12 in<|im_end|>") == [TOKENS.index(token) for token in wanted]
    text = "naïve café, 2048 東京 🙂\n\tthe  end <|im_start|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == {0, 2}
    messages = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert tokenizer.decode(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
