"""The inputs of `pdm run compare` for the operations: week 1 days 1 to 4."""

from types import ModuleType

import mlx.core as mx

from scripts.compare_cases import (
    case,
    normal,
    triangle,
)
from scripts.compare_trees import Tree

# week 1 day 1


@case("basics.softmax")
def softmax_of_rows(tiny: ModuleType) -> Tree:
    """Along the last axis."""
    return tiny.softmax(normal(67, 4096), axis=-1)


@case("basics.softmax")
def softmax_of_columns(tiny: ModuleType) -> Tree:
    """Along the first axis."""
    return tiny.softmax(normal(257, 1031, seed=1), axis=0)


@case("basics.softmax")
def softmax_of_large_entries(tiny: ModuleType) -> Tree:
    """Of large entries."""
    return tiny.softmax(300 * normal(67, 1031, seed=2), axis=-1)


@case("basics.softmax")
def softmax_in_float16(tiny: ModuleType) -> Tree:
    """In float16."""
    return tiny.softmax(normal(31, 4096, seed=3, dtype=mx.float16), axis=-1)


@case("basics.linear")
def linear_with_bias(tiny: ModuleType) -> Tree:
    """With a bias."""
    return tiny.linear(normal(61, 256), normal(509, 256, seed=1), normal(509, seed=2))


@case("basics.linear")
def linear_of_batch(tiny: ModuleType) -> Tree:
    """Of a batch, no bias."""
    return tiny.linear(normal(3, 37, 256), normal(509, 256, seed=1))


def query_key_value(L: int, S: int, *shape: int, H: int, D: int = 64) -> list[mx.array]:
    """A query [*shape, L, D]; keys and values of S positions, with H heads in the place of the last."""
    return [
        normal(*shape, L, D),
        normal(*shape[:-1], H, S, D, seed=1),
        normal(*shape[:-1], H, S, D, seed=2),
    ]


@case("attention.scaled_dot_product_attention_simple")
def attention_without_mask(tiny: ModuleType) -> Tree:
    """Without a mask."""
    return tiny.scaled_dot_product_attention_simple(*query_key_value(127, 193, 7, H=7))


@case("attention.scaled_dot_product_attention_simple")
def attention_with_mask(tiny: ModuleType) -> Tree:
    """With mask and scale."""
    return tiny.scaled_dot_product_attention_simple(
        *query_key_value(127, 193, 7, H=7), scale=0.3, mask=triangle(127, 193)
    )


def heads_of_192(tiny: ModuleType, mask: mx.array | None) -> Tree:
    """Six heads on a width of 192."""
    projections = [0.1 * normal(192, 192, seed=seed) for seed in range(4)]
    layer = tiny.SimpleMultiHeadAttention(192, 6, *projections)
    return layer(*(normal(2, 97, 192, seed=seed) for seed in (5, 6, 7)), mask=mask)


@case("attention.SimpleMultiHeadAttention")
def many_heads(tiny: ModuleType) -> Tree:
    """Of 6 heads."""
    return heads_of_192(tiny, None)


@case("attention.SimpleMultiHeadAttention")
def many_masked_heads(tiny: ModuleType) -> Tree:
    """Of 6 heads, masked."""
    return heads_of_192(tiny, triangle(97, 97))


# week 1 day 2


@case("positional_encoding.rope_frequencies")
def frequencies(tiny: ModuleType) -> Tree:
    """Of 8192 dimensions."""
    return tiny.positional_encoding.rope_frequencies(8192, 1e6)


@case("positional_encoding.RoPE")
def rotation_in_halves(tiny: ModuleType) -> Tree:
    """Pairs in halves."""
    return tiny.RoPE(64, 512)(normal(2, 257, 6, 64))


@case("positional_encoding.RoPE")
def rotation_of_neighbours(tiny: ModuleType) -> Tree:
    """Neighbours as pairs."""
    return tiny.RoPE(64, 512, base=5000, traditional=True)(normal(2, 257, 6, 64), offset=101)


@case("positional_encoding.RoPE.first_positions")
def first_positions(tiny: ModuleType) -> Tree:
    """None, int, slice, list."""
    return [tiny.RoPE.first_positions(offset, 3, 7) for offset in (None, 5, slice(4, 11), [2, 0, 9])]


@case("positional_encoding.RoPE.first_positions")
def offsets_of_rows(tiny: ModuleType) -> Tree:
    """Rotated, one a row."""
    return tiny.RoPE(64, 512)(normal(3, 131, 6, 64), offset=[17, 0, 301])


@case("positional_encoding.LinearScaling")
def linear_scaling(tiny: ModuleType) -> Tree:
    """Factor 2.5."""
    return tiny.positional_encoding.LinearScaling(2.5).frequencies(128, 1e4)


@case("positional_encoding.Llama3Scaling")
def llama3_scaling(tiny: ModuleType) -> Tree:
    """As in Llama 3.1."""
    return tiny.positional_encoding.Llama3Scaling(8.0, 1.0, 4.0, 8192).frequencies(128, 5e5)


@case("positional_encoding.YarnScaling")
def yarn_scaling(tiny: ModuleType) -> Tree:
    """Factor 4."""
    yarn = tiny.positional_encoding.YarnScaling
    amplitude = yarn.default_amplitude(4.0)
    return {"amplitude": amplitude, "frequencies": yarn(4.0, 32768, amplitude).frequencies(128, 1e6)}


# week 1 day 3


@case("attention.causal_mask")
def mask_of_prompt(tiny: ModuleType) -> Tree:
    """Of a whole prompt."""
    return tiny.causal_mask(1021, 1021)


@case("attention.causal_mask")
def mask_of_chunk(tiny: ModuleType) -> Tree:
    """Of a chunk, float16."""
    return tiny.causal_mask(127, 1021, mx.float16)


@case("attention.scaled_dot_product_attention_grouped")
def grouped_attention(tiny: ModuleType) -> Tree:
    """Without a mask."""
    return tiny.scaled_dot_product_attention_grouped(*query_key_value(127, 193, 2, 6, H=2))


@case("attention.scaled_dot_product_attention_grouped")
def causal_grouped_attention(tiny: ModuleType) -> Tree:
    """Causal."""
    return tiny.scaled_dot_product_attention_grouped(*query_key_value(127, 193, 2, 6, H=2), mask="causal")


@case("attention.scaled_dot_product_attention_grouped")
def grouped_attention_with_mask_by_head(tiny: ModuleType) -> Tree:
    """A mask for each head."""
    mask = triangle(127, 193) + normal(2, 6, 127, 193, seed=9)
    return tiny.scaled_dot_product_attention_grouped(*query_key_value(127, 193, 2, 6, H=2), mask=mask)


# week 1 day 4


@case("layer_norm.RMSNorm")
def norm(tiny: ModuleType) -> Tree:
    """Over 512 dimensions."""
    return tiny.RMSNorm(512, normal(512, seed=1))(normal(3, 257, 512))


@case("layer_norm.RMSNorm")
def norm_in_bfloat16(tiny: ModuleType) -> Tree:
    """In bfloat16."""
    return tiny.RMSNorm(512, normal(512, seed=1, dtype=mx.bfloat16))(normal(3, 257, 512, dtype=mx.bfloat16))


@case("basics.silu")
def silu(tiny: ModuleType) -> Tree:
    """Of 262,000 entries."""
    return tiny.silu(3 * normal(254, 1031))


@case("mlp.Qwen3MLP")
def mlp(tiny: ModuleType) -> Tree:
    """192 to 512 and back."""
    shapes = ((512, 192), (512, 192), (192, 512))
    matrices = (0.1 * normal(*shape, seed=seed) for seed, shape in enumerate(shapes, start=1))
    return tiny.Qwen3MLP(192, 512, *matrices)(normal(2, 67, 192))
