"""The cases of `pdm run compare` for week 1."""

import mlx.core as mx

from scripts.compare.differences import Tree
from scripts.compare.inputs import (
    ByteTokenizer,
    E,
    V,
    matrices,
    normal,
    query_key_value,
    small_block,
    small_model,
    token_ids,
    triangle,
)
from scripts.compare.library import Case, Library


def masked_heads(tiny: Library) -> Tree:
    """Queries, keys and values of different vectors."""
    layer = tiny.SimpleMultiHeadAttention(192, 6, *matrices(*[(192, 192)] * 4))
    return layer(*(normal(2, 97, 192, seed=seed) for seed in (5, 6, 7)), mask=triangle(97, 97))


def norm_of_512(tiny: Library, dtype: mx.Dtype) -> Tree:
    """771 vectors in a type."""
    return tiny.RMSNorm(512, normal(512, seed=1, dtype=dtype))(normal(3, 257, 512, dtype=dtype))


def mlp(tiny: Library) -> Tree:
    """134 vectors."""
    return tiny.Qwen3MLP(192, 512, *matrices((512, 192), (512, 192), (192, 512)))(normal(2, 67, 192))


def streamed(tiny: Library) -> Tree:
    """The pieces and the whole, a byte a token."""
    pieces: list[str] = []
    stream = tiny.TextStream(ByteTokenizer(), pieces.append)
    for token in ("the naïve café — 起初 🌱" * 50).encode()[:-1]:
        stream.add(token)
    return {"text": stream.finish(), "pieces": pieces}


def generated(tiny: Library, function: str, max_tokens: int, vocab_size: int = V) -> Tree:
    """What the small model adds to 31 tokens."""
    inputs = small_model(tiny, vocab_size), ByteTokenizer(), token_ids(31), tiny.make_sampler(0)
    return getattr(tiny, function)(*inputs, max_tokens=max_tokens)


def logprobs(B: int, V: int = 49_152) -> mx.array:
    """Log-probabilities [B, V] of which a few tokens have most."""
    logits = 3 * normal(B, V, seed=4)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


CASES = (
    # day 1
    Case("softmax", "Along the last axis", lambda tiny: tiny.softmax(normal(67, 4096), axis=-1)),
    Case("softmax", "Along the first axis", lambda tiny: tiny.softmax(normal(257, 1031), axis=0)),
    Case("softmax", "In float16", lambda tiny: tiny.softmax(normal(31, 4096, dtype=mx.float16), axis=-1)),
    Case(
        "linear",
        "With a bias",
        lambda tiny: tiny.linear(normal(61, 256), normal(509, 256, seed=1), normal(509, seed=2)),
    ),
    Case(
        "scaled_dot_product_attention_simple",
        "With mask and scale",
        lambda tiny: tiny.scaled_dot_product_attention_simple(
            *query_key_value(127, 193, 7, H=7), scale=0.3, mask=triangle(127, 193)
        ),
    ),
    Case("SimpleMultiHeadAttention", "Of 6 heads, masked", masked_heads),
    # day 2
    Case("RoPE", "Pairs in halves", lambda tiny: tiny.RoPE(64, 512)(normal(2, 257, 6, 64))),
    Case(
        "RoPE",
        "Neighbours as pairs",
        lambda tiny: tiny.RoPE(64, 512, traditional=True)(normal(2, 257, 6, 64)),
    ),
    Case(
        "RoPE.first_positions",
        "Rotated, offset per row",
        lambda tiny: tiny.RoPE(64, 512)(normal(3, 131, 6, 64), offset=[17, 0, 301]),
    ),
    # day 3
    Case("causal_mask", "Of a whole prompt", lambda tiny: tiny.causal_mask(1021, 1021)),
    Case(
        "scaled_dot_product_attention_grouped",
        "One query, 4,096 keys",
        lambda tiny: tiny.scaled_dot_product_attention_grouped(
            *query_key_value(1, 4096, 1, 16, H=8, D=128), mask=None
        ),
    ),
    Case(
        "scaled_dot_product_attention_grouped",
        "Causal",
        lambda tiny: tiny.scaled_dot_product_attention_grouped(
            *query_key_value(127, 193, 2, 6, H=2), mask="causal"
        ),
    ),
    # day 4
    Case("RMSNorm", "Over 512 dimensions", norm_of_512, (mx.float32,)),
    Case("RMSNorm", "In bfloat16", norm_of_512, (mx.bfloat16,)),
    Case("silu", "Of 262,000 entries", lambda tiny: tiny.silu(3 * normal(254, 1031))),
    Case("Qwen3MLP", "192 to 512 and back", mlp),
    # day 5
    Case("Qwen3TransformerBlock", "Of a prompt", lambda tiny: small_block(tiny, 1)(normal(2, 127, E))),
    Case(
        "Qwen3Model",
        "Logits of two prompts",
        lambda tiny: small_model(tiny)(mx.array([token_ids(127), token_ids(127, seed=1)])),
    ),
    Case(
        "Qwen3Model",
        "Logits of the last 3",
        lambda tiny: small_model(tiny)(mx.array([token_ids(127)]), logits_to_keep=3),
    ),
    # day 6
    Case("TextStream", "A text of 1,700 bytes", streamed),
    Case("simple_generate", "8 tokens of 49,152", generated, ("simple_generate", 8, 49_152)),
    # day 7
    Case("keep_likely", "Top-k, top-p, min-p", lambda tiny: tiny.keep_likely(logprobs(3), 0.8, 40, 0.01)),
)
