"""A tiny Llama in a GGUF file, written byte by byte, and what it computes, with nothing of MLX's reader."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE = 2, 6, 3, 32, 192, 160
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "1 2"]  # "12" must not become one token: digits stand alone
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Array = npt.NDArray[Any]
Value = int | float | bool | str | list[str] | list[int]
Metadata = dict[str, tuple[int, Value]]
Raw = dict[str, tuple[int, tuple[int, ...], bytes]]


def byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as, by byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


TOKENS = [*SPECIALS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_metadata() -> Metadata:
    return {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (U32, LAYERS),
        "llama.embedding_length": (U32, HIDDEN),
        "llama.feed_forward_length": (U32, INTERMEDIATE),
        "llama.context_length": (U32, 131),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT, 1e-5),
        "llama.rope.dimension_count": (U32, HEAD_DIM),
        "llama.rope.freq_base": (FLOAT, 5000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (STRING, TOKENS),
        "tokenizer.ggml.token_type": (I32, [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS))),
        "tokenizer.ggml.merges": (STRING, MERGES),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.padding_token_id": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, TEMPLATE),
    }


def tiny_tensors() -> Raw:
    """Random blocks, written straight as bytes: no quantizer decides what they hold."""
    rng = np.random.default_rng(11)

    def matrix(rows: int, columns: int, kind: int) -> tuple[int, tuple[int, ...], bytes]:
        blocks = rows * columns // 32
        scales = rng.uniform(0.005, 0.02, (blocks, 1)).astype("<f2")
        if kind == Q8_0:
            codes = rng.integers(-127, 128, (blocks, 32)).astype(np.int8)
            parts: list[Array] = [scales / np.float16(4), codes]
        else:
            offsets = (-7.5 * scales + rng.normal(0, 0.01, (blocks, 1))).astype("<f2")
            parts = [scales, offsets, rng.integers(0, 256, (blocks, 16)).astype(np.uint8)]
        data = np.concatenate([part.view(np.uint8).reshape(blocks, -1) for part in parts], axis=1)
        return kind, (rows, columns), data.tobytes()

    def norm() -> tuple[int, tuple[int, ...], bytes]:
        return F32, (HIDDEN,), rng.normal(1, 0.3, HIDDEN).astype("<f4").tobytes()

    kv_rows = KV_HEADS * HEAD_DIM
    tensors = {"token_embd.weight": matrix(len(TOKENS), HIDDEN, Q8_0), "output_norm.weight": norm()}
    for i in range(LAYERS):
        tensors |= {
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": matrix(HIDDEN, HIDDEN, Q4_1),
            f"blk.{i}.attn_k.weight": matrix(kv_rows, HIDDEN, Q4_1),
            f"blk.{i}.attn_v.weight": matrix(kv_rows, HIDDEN, Q4_1),
            f"blk.{i}.attn_output.weight": matrix(HIDDEN, HIDDEN, Q4_1),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": matrix(INTERMEDIATE, HIDDEN, Q4_1),
            f"blk.{i}.ffn_up.weight": matrix(INTERMEDIATE, HIDDEN, Q4_1),
            f"blk.{i}.ffn_down.weight": matrix(HIDDEN, INTERMEDIATE, Q4_1),
        }
    return tensors


def write_gguf(path: Path, metadata: Metadata, tensors: Raw) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def scalar(kind: int, value: object) -> bytes:
        return (
            text(str(value))
            if kind == STRING
            else struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], value)
        )

    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, (kind, value) in metadata.items():
        if isinstance(value, list):
            items = b"".join(scalar(kind, item) for item in value)
            out += text(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
        else:
            out += text(key) + struct.pack("<I", kind) + scalar(kind, value)
    data = bytearray()
    for name, (kind, shape, content) in tensors.items():
        dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def tiny_weights() -> dict[str, Array]:
    """Every tensor of the tiny Llama as float32, from the bytes that are written."""
    return {name: decode(content, kind, shape) for name, (kind, shape, content) in tiny_tensors().items()}


def decode(data: bytes, kind: int, shape: tuple[int, ...]) -> Array:
    """One tensor from the bytes that begin with it."""
    count = int(np.prod(shape))
    if kind == F32:
        floats: Array = np.frombuffer(data, "<f4", count).reshape(shape)
        return floats
    size = {Q4_1: 20, Q8_0: 34}[kind]
    blocks = np.frombuffer(data, np.uint8, count // 32 * size).reshape(-1, size)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    values: Array
    if kind == Q8_0:
        values = scale * blocks[:, 2:].view(np.int8)
        return values.reshape(shape)
    lowest = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    values = scale * codes + lowest
    return values.reshape(shape)


def llama_logits(w: dict[str, Array], tokens: list[int]) -> Array:
    """[L, V]: the model as llama.cpp computes it: rows in the GGUF's order, RoPE turns neighbours."""

    def norm(x: Array, weight: Array) -> Array:
        normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
        return normed

    def rope(x: Array) -> Array:
        angles = np.arange(L)[:, None] * 5000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        pairs: Array = np.stack([turned.real, turned.imag], -1)
        return pairs.reshape(x.shape)

    def heads(x: Array, count: int) -> Array:
        return x.reshape(L, count, HEAD_DIM).swapaxes(0, 1)

    L = len(tokens)
    x = w["token_embd.weight"][tokens].astype(np.float64)
    for i in range(LAYERS):
        layer = {name.split(".")[2]: value for name, value in w.items() if name.startswith(f"blk.{i}.")}
        h = norm(x, layer["attn_norm"])
        q = rope(heads(h @ layer["attn_q"].T, HEADS))
        k, v = (
            np.repeat(heads(h @ layer[p].T, KV_HEADS), HEADS // KV_HEADS, 0) for p in ("attn_k", "attn_v")
        )
        scores = q @ rope(k).swapaxes(1, 2) / np.sqrt(HEAD_DIM) + np.triu(np.full((L, L), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + mixed.swapaxes(0, 1).reshape(L, HIDDEN) @ layer["attn_output"].T
        h = norm(x, layer["ffn_norm"])
        gate = h @ layer["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["ffn_up"].T)) @ layer["ffn_down"].T
    logits: Array = norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
    return logits


def write_tiny_gguf(path: Path) -> Path:
    """The tiny Llama."""
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path
