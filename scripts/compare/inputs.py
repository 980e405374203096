"""What the cases of `pdm run compare` are run on: random arrays, prompts, and a small Qwen3."""

from collections.abc import Sequence
from functools import cache

import mlx.core as mx

from kernel_runtime.launch import default_target
from scripts.compare.differences import Tree
from scripts.compare.library import Library

E, I, V, D, H_q, H = 128, 256, 257, 32, 6, 2  # noqa: E741  all different, so that no swapped axis fits


def fitting(sizes: tuple[int, ...], emulated: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes, or smaller ones where the default device is a GPU that the emulator stands in for."""
    is_emulated = mx.default_device() != mx.cpu and default_target().device == "emulator"
    return emulated if is_emulated else sizes


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal-distributed numbers, the same in every run, in an array that the caller may change."""
    # The cached array is never handed out: `x += 1` in a learner's function would change it for all.
    return _normal(shape, seed, dtype).reshape(shape)


@cache
def _normal(shape: tuple[int, ...], seed: int, dtype: mx.Dtype) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
    mx.eval(array)
    return array


def packed(tiny: Library, *shape: int, bits: int = 4) -> Tree:
    """Normal-distributed weights as MLX packs them, packed once: a run is not to time that."""
    return tiny.QuantizedWeights(*(part.reshape(part.shape) for part in _packed(shape, bits)), 64, bits)


@cache
def _packed(shape: tuple[int, ...], bits: int) -> Sequence[mx.array]:
    parts = mx.quantize(_normal(shape, 0, mx.float32), group_size=64, bits=bits)
    mx.eval(parts)
    return parts


def matrices(*shapes: tuple[int, int], seed: int = 0) -> list[mx.array]:
    """Weights of projections, small enough that layers in a row keep their vectors' size."""
    return [0.1 * normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)]


def query_key_value(L: int, S: int, *heads: int, H: int, D: int = 64) -> list[mx.array]:
    """A query [*heads, L, D]; keys and values of S positions with H heads in the place of the last."""
    return [normal(*heads, L, D), *(normal(*heads[:-1], H, S, D, seed=seed) for seed in (1, 2))]


def triangle(L: int, S: int) -> mx.array:
    """An additive causal mask [L, S]."""
    return mx.triu(mx.full((L, S), -mx.inf), k=S - L + 1)


def token_ids(length: int, seed: int = 0) -> list[int]:
    """A prompt for the small model, without its end-of-text id."""
    return mx.random.randint(1, 256, (length,), key=mx.random.key(seed)).tolist()  # type: ignore[return-value]


class ByteTokenizer:
    """One token a byte of UTF-8, so that a character may take several; id 0 ends the text."""

    eos_token_ids = {0}
    bos_token: str | None = None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text; what is no whole character becomes a replacement character."""
        return bytes(token % 256 for token in token_ids).decode(errors="replace")


@cache
def small_block(tiny: Library, layer: int) -> Tree:
    """One layer of the small model."""
    seed = 20 * layer
    projections = matrices((H_q * D, E), (H * D, E), (H * D, E), (E, H_q * D), seed=seed)
    q_norm, k_norm, *norms = (
        tiny.RMSNorm(size, 1 + 0.1 * normal(size, seed=seed + 10 + i)) for i, size in enumerate((D, D, E, E))
    )
    rope = tiny.RoPE(D, 512, base=5000.0)
    attention = tiny.Qwen3MultiHeadAttention(small_config(tiny), *projections, rope, q_norm, k_norm)
    mlp = tiny.Qwen3MLP(E, I, *matrices((I, E), (I, E), (E, I), seed=seed + 5))
    return tiny.Qwen3TransformerBlock(attention, mlp, *norms)


def small_config(tiny: Library, vocab_size: int = V) -> Tree:
    """The small model's configuration, made without `from_dict`."""
    sizes = (E, 2, I, H_q, H, D, vocab_size, 512)
    return tiny.ModelConfig("qwen3", *sizes, rope_theta=5000.0, tie_word_embeddings=True, qk_norm=True)


@cache
def small_model(tiny: Library, vocab_size: int = V) -> Tree:
    """A Qwen3 of two layers with random weights, put together without the loader."""
    embedding = tiny.Embedding(vocab_size, E, *matrices((vocab_size, E), seed=40))
    norm = tiny.RMSNorm(E, 1 + 0.1 * normal(E, seed=41))
    blocks = [small_block(tiny, i) for i in range(2)]
    return tiny.Qwen3Model(small_config(tiny, vocab_size), embedding, blocks, norm)
