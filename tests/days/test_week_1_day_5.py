"""Week 1 day 5: embedding, self-attention, block and model, two loaders, and what the second one refuses."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import BASE_CONFIG, LLAMA3, VARIANTS, Variant, build, loader_mistakes, save
from tests.support.counting import Counted, check_calls
from tests.support.oracles import (
    LOW_PRECISION,
    Array,
    causal_mask,
    exact,
    grouped_attention,
    rms_norm,
)
from tests.support.precision import check_types
from tests.support.self_attention import SelfAttention
from tiny_llm import (
    Embedding,
    HeadProjection,
    ModelConfig,
    Qwen3MLP,
    Qwen3Model,
    Qwen3MultiHeadAttention,
    Qwen3TransformerBlock,
    RMSNorm,
    RoPE,
    linear,
    load,
    scaled_dot_product_attention_grouped,
)
from tiny_llm.model.kv_cache import DenseKvCache
from tiny_llm.model.loader import Quantization, Tensors, build_model, load_model
from tiny_llm.model.operations import Operations
from tiny_llm.model.plain_checkpoint import read_plain_checkpoint
from tiny_llm.model.plain_loader import build_plain_model
from tiny_llm.ops.positional_encoding import LinearScaling, Llama3Scaling, YarnScaling

# --- task 1 ------------------------------------------------------------------------------------------------

V, E = 23, 17


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 3, 5)], ids=str)
def test_task_1_each_token_has_its_vector(shape: tuple[int, ...]) -> None:
    weight = normal(V, E, seed=1)
    tokens = mx.random.randint(0, V, shape, key=mx.random.key(2))
    actual = Embedding(V, E, weight)(tokens)
    mistakes = {
        "the vectors of the tokens before: ids count from 0": exact(weight)[np.array(tokens) - 1],
        "the vectors times the root of the width": exact(weight)[np.array(tokens)] * E**0.5,
    }
    check_close(actual, exact(weight)[np.array(tokens)], f"vectors of tokens {shape}", mistakes=mistakes)


def test_task_1_first_and_last_token() -> None:
    weight = normal(V, E, seed=1)
    actual = Embedding(V, E, weight)(mx.array([0, V - 1]))
    check_close(actual, exact(weight)[[0, -1]], "vectors of the first and the last token")


@pytest.mark.parametrize("shape", [(E,), (3, E), (2, 3, E)], ids=str)
def test_task_1_as_linear_is_the_output_head(shape: tuple[int, ...]) -> None:
    weight, x = normal(V, E, seed=1), normal(*shape, seed=3)
    check_close(Embedding(V, E, weight).as_linear(x), exact(x) @ exact(weight).T, "logits of x")


def test_task_1_as_linear_of_a_square_weight() -> None:
    weight, x = normal(E, E, seed=1), normal(2, 3, E, seed=3)
    check_close(Embedding(E, E, weight).as_linear(x), exact(x) @ exact(weight).T, "logits of x")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_1_type_of_the_weight_is_kept(dtype: mx.Dtype, tolerance: float) -> None:
    weight, x = normal(V, E, seed=1, dtype=dtype), normal(3, E, seed=3, dtype=dtype)
    embedding = Embedding(V, E, weight)
    check_equal(embedding(mx.array([4])).dtype, dtype, "type of the vectors")
    check_equal(embedding.as_linear(x).dtype, dtype, "type of the logits")
    check_close(embedding.as_linear(x), exact(x) @ exact(weight).T, "logits of x", tolerance)


def test_task_1_logits_have_the_type_of_x_and_the_weight() -> None:
    check_types(
        lambda x, weight: Embedding(V, E, weight).as_linear(x),
        lambda x, weight: x @ weight.T,
        "logits",
        {"x": normal(3, E, seed=3), "weight": normal(V, E, seed=1)},
    )


@pytest.mark.parametrize("shape", [(E, V), (V, E + 1), (V + 1, E), (V * E,)], ids=str)
def test_task_1_a_weight_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with check_value_error(weight=shape):
        Embedding(V, E, normal(*shape, seed=1))


# --- task 2 ------------------------------------------------------------------------------------------------

B, L, H_Q, H, D = 2, 7, 6, 2, 10
BASE, EPS = 300.0, 1e-3
ROPE_LEN = 64


def small_config(**changes: Any) -> ModelConfig:
    """Sizes that are all different, and E is not H_q x D."""
    sizes = {
        "model_type": "qwen3",
        "hidden_size": E,
        "num_hidden_layers": 3,
        "intermediate_size": 13,
        "num_attention_heads": H_Q,
        "num_key_value_heads": H,
        "head_dim": D,
        "vocab_size": V,
        "max_position_embeddings": ROPE_LEN,
    }
    return ModelConfig(**{**sizes, **changes})


def attention_weights(dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    shapes = {"wq": (H_Q * D, E), "wk": (H * D, E), "wv": (H * D, E), "wo": (E, H_Q * D)}
    return {
        name: (0.4 * normal(*shape, seed=10 + i)).astype(dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }


def head_norms(dtype: mx.Dtype = mx.float32) -> dict[str, RMSNorm]:
    return {
        name: RMSNorm(D, (1 + 0.5 * normal(D, seed=20 + i)).astype(dtype), EPS)
        for i, name in enumerate(("q_norm", "k_norm"))
    }


def make_attention(**parts: Any) -> Qwen3MultiHeadAttention:
    return Qwen3MultiHeadAttention(
        small_config(), **{**attention_weights(), "rope": RoPE(D, ROPE_LEN, BASE), **parts}
    )


def by_formula(
    x: mx.array,
    positions: Any,
    norms: dict[str, RMSNorm] | None = None,
    biases: dict[str, mx.array] | None = None,
    mask: Array | float | None = None,
) -> SelfAttention:
    """Of the weights above."""
    weights, norm_weights, all_biases = (
        {name: exact(each) for name, each in arrays.items()}
        for arrays in (
            attention_weights(x.dtype),
            {name: norm.weight for name, norm in (norms or {}).items()},
            biases or {},
        )
    )
    return SelfAttention(exact(x), weights, D, BASE, positions, norm_weights, EPS, all_biases, mask)


def check_self_attention(actual: mx.array, right: SelfAttention, what: str, tolerance: float = 1e-5) -> None:
    __tracebackhide__ = True
    check_close(actual, right.output(), what, tolerance, right.mistakes())


def check_queries(actual: mx.array, right: SelfAttention, what: str) -> None:
    """Of an attention that shows its queries."""
    __tracebackhide__ = True

    def queries(attention: SelfAttention) -> Array:
        return attention.join(attention.head("q"))

    check_close(actual, queries(right), f"{what}, joined and projected", mistakes=right.mistakes(queries))


NORMS = {
    "plain heads": (),
    "normalized heads": ("q_norm", "k_norm"),
    "queries": ("q_norm",),
    "keys": ("k_norm",),
}


@pytest.fixture(params=NORMS.values(), ids=[*NORMS])
def norms(request: pytest.FixtureRequest) -> dict[str, RMSNorm]:
    return {name: norm for name, norm in head_norms().items() if name in request.param}


@pytest.mark.parametrize(("B", "L"), [(2, 7), (1, 7), (3, 1), (1, 1)])
def test_task_2_self_attention(norms: dict[str, RMSNorm], B: int, L: int) -> None:
    x = normal(B, L, E, seed=30)
    check_self_attention(make_attention(**norms)(x), by_formula(x, range(L), norms), "self-attention of x")


def test_task_2_one_offset_for_all_rows(norms: dict[str, RMSNorm]) -> None:
    attention, x = make_attention(**norms, attention=first_query), normal(B, L, E, seed=31)
    right = by_formula(x, range(19, 19 + L), norms)
    check_queries(attention(x, 19), right, "queries of x from offset 19")


def test_task_2_one_offset_a_row(norms: dict[str, RMSNorm]) -> None:
    attention, x = make_attention(**norms, attention=first_query), normal(B, L, E, seed=32)
    right = by_formula(x, np.array([[19], [2]]) + np.arange(L), norms)
    check_queries(attention(x, [19, 2]), right, "queries of x from offsets [19, 2]")


def first_query(
    query: mx.array, key: mx.array, value: mx.array, scale: Any = None, mask: Any = None
) -> mx.array:
    """In place of an attention: shows the queries."""
    return query


@pytest.mark.parametrize("names", [("wq", "wk", "wv"), ("wq", "wk", "wv", "wo")], ids=["qkv", "all"])
def test_task_2_projections_with_biases(names: tuple[str, ...]) -> None:
    x, weights = normal(B, L, E, seed=33), attention_weights()
    biases = {name: normal(weights[name].shape[0], seed=40 + i) for i, name in enumerate(names)}
    projections = {name: with_bias(weights[name], bias) for name, bias in biases.items()}
    right = by_formula(x, range(L), biases=biases)
    check_self_attention(make_attention(**projections)(x), right, "self-attention with biases")


def with_bias(weight: mx.array, bias: mx.array) -> Callable[[mx.array], mx.array]:
    return lambda x: linear(x, weight, bias)


@pytest.mark.parametrize("shape", [(L, L), (B, 1, L, L), (1, H_Q, L, L)], ids=str)
def test_task_2_a_mask_replaces_the_causal_one(shape: tuple[int, ...]) -> None:
    x, mask = normal(B, L, E, seed=34), normal(*shape, seed=35)
    right = by_formula(x, range(L), mask=exact(mask))
    check_self_attention(make_attention()(x, mask=mask), right, "self-attention with a mask")


def test_task_2_no_mask_if_asked() -> None:
    x = normal(B, L, E, seed=36)
    right = by_formula(x, range(L), mask=0.0)
    check_self_attention(make_attention()(x, mask=None), right, "self-attention without a mask")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_self_attention_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    x, norms = normal(B, L, E, seed=37, dtype=dtype), head_norms(dtype)
    actual = make_attention(**attention_weights(dtype), **norms)(x)
    check_equal(actual.dtype, dtype, "type of the self-attention")
    check_self_attention(actual, by_formula(x, range(L), norms), "self-attention", 2 * tolerance)


class PrefixCache(DenseKvCache):
    """Holds keys and values of earlier tokens, remembers what it was given, and may replace the mask."""

    def __init__(self, length: int, mask: mx.array | None = None) -> None:
        self.keys = normal(B, H, length, D, seed=50)
        self.values = normal(B, H, length, D, seed=51)
        self.mask = mask
        self.num_attended = 0

    def attend(self, query, key, value, attention, mask=None):  # type: ignore[no-untyped-def]
        self.num_attended += 1
        return super().attend(query, key, value, attention, mask)

    def update_and_fetch(self, key, value, mask=None):  # type: ignore[no-untyped-def]
        self.given = (key, value, mask)
        keys = mx.concatenate([self.keys, key], axis=2)
        values = mx.concatenate([self.values, value], axis=2)
        return keys, values, keys.shape[2], mask if self.mask is None else self.mask

    @property
    def offset(self) -> int | list[int]:
        return self.keys.shape[2]

    @property
    def state(self) -> list[mx.array]:
        return [self.keys, self.values]

    def release(self) -> None:
        self.keys, self.values = self.keys[:0], self.values[:0]


def test_task_2_a_cache_gets_keys_as_they_are_attended_to(norms: dict[str, RMSNorm]) -> None:
    cache, x = PrefixCache(5), normal(B, L, E, seed=38)
    make_attention(**norms)(x, 5, cache)
    right = by_formula(x, range(5, 5 + L), norms)
    for given, part, name in zip(cache.given, "kv", ("keys", "values"), strict=False):
        mistakes = right.mistakes(lambda wrong, part=part: wrong.head(part))  # type: ignore[misc]
        check_close(given, right.head(part), f"{name} given to the cache", mistakes=mistakes)
    check_equal(cache.given[2], "causal", "mask given to the cache")


def test_task_2_what_the_cache_returns_is_attended_to() -> None:
    cache, x = PrefixCache(5), normal(B, L, E, seed=38)
    actual = make_attention()(x, 5, cache)
    check_equal(cache.num_attended, 1, "calls of the cache's attend")
    right = by_formula(x, range(5, 5 + L))
    keys = np.concatenate([exact(cache.keys), right.head("k")], axis=2)
    values = np.concatenate([exact(cache.values), right.head("v")], axis=2)
    expected = right.join(grouped_attention(right.head("q"), keys, values, mask=causal_mask(L, 5 + L)))
    check_close(actual, expected, "self-attention over cached and new tokens")


def test_task_2_the_mask_of_the_cache_is_used() -> None:
    mask = normal(B, 1, L, 5 + L, seed=52)
    cache, x = PrefixCache(5, mask), normal(B, L, E, seed=38)
    actual = make_attention()(x, 5, cache)
    right = by_formula(x, range(5, 5 + L))
    keys = np.concatenate([exact(cache.keys), right.head("k")], axis=2)
    values = np.concatenate([exact(cache.values), right.head("v")], axis=2)
    expected = right.join(grouped_attention(right.head("q"), keys, values, mask=exact(mask)))
    check_close(actual, expected, "self-attention with the mask that the cache returned")


def test_task_2_the_heads_may_come_from_outside() -> None:
    def of_negative(*parts, **named):  # type: ignore[no-untyped-def]
        project_heads = HeadProjection(*parts, **named)
        return lambda x, offset: project_heads(-x, offset)

    x, norms = normal(B, L, E, seed=39), head_norms()
    actual = make_attention(**norms, project_heads=of_negative)(x, 3)
    right = by_formula(-x, range(3, 3 + L), norms)
    check_self_attention(actual, right, "self-attention whose project_heads makes heads of -x")


def test_task_2_the_attention_function_comes_from_outside() -> None:
    calls = []

    def attention(query, key, value, scale=None, mask=None):  # type: ignore[no-untyped-def]
        calls.append((query.shape, key.shape, value.shape, scale, mask))
        return scaled_dot_product_attention_grouped(query, key, value, scale, mask) * 2

    x = normal(B, L, E, seed=39)
    actual = make_attention(attention=attention)(x)
    check_equal(
        calls, [((B, H_Q, L, D), (B, H, L, D), (B, H, L, D), None, "causal")], "what the attention was given"
    )
    expected = 2 * by_formula(x, range(L)).output()
    check_close(actual, expected, "self-attention doubled by its function")


@pytest.mark.parametrize("length", [1, L])
@pytest.mark.parametrize("num_cached", [None, 5])
def test_task_2_each_part_is_called_once(num_cached: int | None, length: int) -> None:
    parts = {name: Counted(linear_by(weight)) for name, weight in attention_weights().items()}
    parts |= {name: Counted(norm) for name, norm in head_norms().items()}
    parts["attention"] = Counted(scaled_dot_product_attention_grouped)
    cache = None if num_cached is None else PrefixCache(num_cached)
    make_attention(**parts)(normal(B, length, E, seed=39), num_cached or 0, cache)
    check_calls(parts, 1, f"in a self-attention {'without' if cache is None else 'with'} a cache")


def linear_by(weight: mx.array) -> Callable[[mx.array], mx.array]:
    return lambda x: linear(x, weight)


@pytest.mark.parametrize("mask", [normal(B, 1, 1, 1, seed=53), "causal", None], ids=["array", "word", "none"])
@pytest.mark.parametrize("num_cached", [None, 5])
def test_task_2_a_single_token_passes_its_mask_on(num_cached: int | None, mask: Any) -> None:
    seen = []

    def attention(query, key, value, scale=None, mask=None):  # type: ignore[no-untyped-def]
        seen.append(mask)
        return query

    cache = None if num_cached is None else PrefixCache(num_cached)
    make_attention(attention=attention)(normal(B, 1, E, seed=39), num_cached or 0, cache, mask)
    if len(seen) != 1 or seen[0] is not mask:
        fail(
            f"masks that the attention got for one token: expected {mask}, got {seen}",
            "One query may be masked.",
        )


# --- task 3 ------------------------------------------------------------------------------------------------


def norm_over(dim: int, seed: int) -> RMSNorm:
    return RMSNorm(dim, 1 + 0.5 * normal(dim, seed=seed), EPS)


def mix(seed: int) -> Callable[[mx.array], mx.array]:
    weight = 0.5 * normal(E, E, seed=seed)
    return lambda x: mx.tanh(x @ weight)


class FakeAttention:
    """Called like the attention and like a block; remembers what it was given beside x."""

    def __init__(self, seed: int) -> None:
        self.function = mix(seed)
        self.calls: list[tuple[Any, Any, Any]] = []

    def __call__(self, x, offset=0, cache=None, mask="causal"):  # type: ignore[no-untyped-def]
        self.calls.append((offset, cache, mask))
        return self.function(x)


def test_task_3_block_adds_attention_then_mlp_each_normalized_before() -> None:
    attention, mlp, first, second = FakeAttention(60), mix(61), norm_over(E, 62), norm_over(E, 63)
    x = normal(B, L, E, seed=64)
    actual = Qwen3TransformerBlock(attention, mlp, first, second)(x)
    middle = x + attention.function(first(x))
    attended = attention.function(first(x))
    mistakes = {
        "the block without its first residual": attended + mlp(second(attended)),
        "the block without its second residual": mlp(second(middle)),
        "the block with the norms swapped": (swapped := x + attention.function(second(x)))
        + mlp(first(swapped)),
        "the block whose first residual is the normalized input, not the input": (
            wrong := first(x) + attended
        )
        + mlp(second(wrong)),
        "the block whose second residual is normalized": second(middle) + mlp(second(middle)),
        "the block whose residuals are both normalized": second(wrong) + mlp(second(wrong)),
        "the block normalized after each residual is added": second(
            (added := first(x + attention.function(x))) + mlp(added)
        ),
        "the block with the second norm on the output of the attention, none before the MLP": (
            literal := x + second(attended)
        )
        + mlp(literal),
        "the block with the first norm used twice": middle + mlp(first(middle)),
        "the block with the second norm used twice": (again := x + attention.function(second(x)))
        + mlp(second(again)),
        "the block with both halves fed by its input": x + attended + mlp(second(x)),
        "the block whose second residual is its input": x + mlp(second(middle)),
        "the block with the norms after, not before": (late := x + first(attention.function(x)))
        + second(mlp(late)),
    }
    check_close(actual, middle + mlp(second(middle)), "output of the block", mistakes=mistakes)


@pytest.mark.parametrize("offset", [3, [3, 8]], ids=str)
def test_task_3_block_passes_offset_cache_and_mask_on(offset: int | list[int]) -> None:
    attention, cache, mask = FakeAttention(60), PrefixCache(5), normal(L, L, seed=65)
    block = Qwen3TransformerBlock(attention, mix(61), norm_over(E, 62), norm_over(E, 63))
    block(normal(B, L, E, seed=64), offset, cache, mask)
    ((given_offset, given_cache, given_mask),) = attention.calls
    check_equal(given_offset, offset, "offset given to the attention")
    assert given_cache is cache, "the attention was not given the cache"
    assert given_mask is mask, "the attention was not given the mask"


def test_task_3_block_is_causal_from_position_zero_unless_told() -> None:
    attention = FakeAttention(60)
    Qwen3TransformerBlock(attention, mix(61), norm_over(E, 62), norm_over(E, 63))(normal(B, L, E, seed=64))
    check_equal(attention.calls, [(0, None, "causal")], "offset, cache and mask given to the attention")


class FakeModelParts:
    """A model of three fake layers, with its parts at hand."""

    def __init__(self, head: Any = None) -> None:
        self.layers = [FakeAttention(70 + i) for i in range(3)]
        self.embedding = Embedding(V, E, normal(V, E, seed=73))
        self.norm = norm_over(E, 74)
        self.model = Qwen3Model(small_config(), self.embedding, self.layers, self.norm, head)

    def hidden(self, tokens: mx.array) -> mx.array:
        return self.norm(self.through(tokens, self.layers))

    def through(self, tokens: mx.array, layers: list[FakeAttention]) -> mx.array:
        x = self.embedding.weight[tokens]
        for layer in layers:
            x = layer.function(x)
        return x

    def mistakes(self, tokens: mx.array) -> dict[str, mx.array]:
        head, layers = self.embedding.weight.T, self.layers
        return {
            "the logits without the final norm": self.through(tokens, layers) @ head,
            "the logits with the layers backwards": self.norm(self.through(tokens, layers[::-1])) @ head,
            "the logits after the first layer alone": self.norm(self.through(tokens, layers[:1])) @ head,
        }

    def logits(self, tokens: mx.array) -> mx.array:
        return self.hidden(tokens) @ self.embedding.weight.T


TOKENS = mx.random.randint(0, V, (B, L), key=mx.random.key(75))


@pytest.mark.parametrize(("B", "L"), [(2, 7), (1, 1), (3, 1), (1, 7)])
def test_task_3_embedding_layers_norm_and_tied_head(B: int, L: int) -> None:
    parts = FakeModelParts()
    tokens = mx.random.randint(0, V, (B, L), key=mx.random.key(76))
    mistakes = parts.mistakes(tokens)
    check_close(parts.model(tokens), parts.logits(tokens), f"logits of tokens {B=} {L=}", mistakes=mistakes)


def test_task_3_a_head_of_its_own() -> None:
    weight = normal(V, E, seed=77)
    parts = FakeModelParts(head=lambda x: x @ weight.T)
    check_close(parts.model(TOKENS), parts.hidden(TOKENS) @ weight.T, "logits of a model with a head")


def test_task_3_the_model_in_two_halves() -> None:
    parts = FakeModelParts()
    hidden = parts.model.hidden_states(TOKENS)
    check_close(hidden, parts.through(TOKENS, parts.layers), "what the last layer gives")
    check_close(parts.model.logits(hidden[:, 2:3]), parts.logits(TOKENS)[:, 2:3], "logits of one position")


@pytest.mark.parametrize(
    ("logits_to_keep", "kept"), [(None, 7), (0, 0), (1, 1), (3, 3), (7, 7), (8, 7), (50, 7)]
)
def test_task_3_only_the_last_positions_get_logits(logits_to_keep: int | None, kept: int) -> None:
    parts = FakeModelParts()
    actual = parts.model(TOKENS, logits_to_keep=logits_to_keep)
    check_equal(actual.shape, (B, kept, V), f"shape of the logits with {logits_to_keep=}")
    if kept:
        logits = parts.logits(TOKENS)
        mistakes = {"the logits of the first positions, not of the last": logits[:, :kept]}
        check_close(actual, logits[:, L - kept :], f"logits with {logits_to_keep=}", mistakes=mistakes)


def test_task_3_the_head_computes_no_more_than_is_kept() -> None:
    seen = []

    def head(x: mx.array) -> mx.array:
        seen.append(x.shape)
        return x

    FakeModelParts(head).model(TOKENS, logits_to_keep=2)
    check_equal(seen, [(B, 2, E)], "what the head was given")


class CacheThatEnds(PrefixCache):
    """One whose next token goes where it is told."""

    def __init__(self, end: int | list[int]) -> None:
        super().__init__(5)
        self.end = end

    @property
    def offset(self) -> int | list[int]:
        return self.end


@pytest.mark.parametrize("offset", [0, 3, [3, 8]], ids=str)
def test_task_3_every_layer_gets_the_offset_and_its_own_cache(offset: int | list[int]) -> None:
    parts, caches = FakeModelParts(), [CacheThatEnds(offset) for _ in range(3)]
    parts.model(TOKENS, offset, caches)
    for i, layer in enumerate(parts.layers):
        check_equal(layer.calls[0][0], offset, f"offset given to layer {i}")
        assert layer.calls[0][1] is caches[i], f"layer {i} was not given its own cache"


def test_task_3_without_caches_no_layer_gets_one() -> None:
    parts = FakeModelParts()
    parts.model(TOKENS)
    check_equal(
        [layer.calls for layer in parts.layers], [[(0, None, "causal")]] * 3, "what the layers were given"
    )


def test_task_3_number_of_layers() -> None:
    parts = FakeModelParts()
    for layers in (parts.layers, parts.layers[:2]):  # whatever the config says
        model = Qwen3Model(small_config(), parts.embedding, layers, parts.norm)
        check_equal(model.num_hidden_layers, len(layers), "num_hidden_layers")


@pytest.mark.parametrize("shape", [(7,), (), (2, 7, 1), (2, 0)], ids=str)
def test_task_3_tokens_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with check_value_error(tokens=shape):
        FakeModelParts().model(mx.zeros(shape, mx.int32))


@pytest.mark.parametrize("num_caches", [0, 1, 2, 4])
def test_task_3_one_cache_a_layer_is_needed(num_caches: int) -> None:
    parts = FakeModelParts()
    with check_value_error(**{"num_hidden_layers": 3, "len(cache)": num_caches}):
        parts.model(TOKENS, 5, [PrefixCache(5) for _ in range(num_caches)])
    check_equal(
        [layer.calls for layer in parts.layers], [[], [], []], "calls of the layers before the refusal"
    )


@pytest.mark.parametrize(
    ("offset", "end"), [(7, 0), (0, 5), (4, 5), ([5, 4], 5), (5, [5, 6]), ([6, 5], [5, 6])], ids=str
)
def test_task_3_an_offset_where_a_cache_does_not_end_is_refused(offset: Any, end: Any) -> None:
    parts = FakeModelParts()
    with check_value_error(**{"offset": offset, "cache.offset": end}):
        parts.model(TOKENS, offset, [CacheThatEnds(each) for each in (offset, end, offset)])
    calls = [layer.calls for layer in parts.layers]
    check_equal(calls, [[], [], []], "calls of the layers before the refusal")


@pytest.mark.parametrize(("offset", "end"), [(5, 5), ([5, 5], 5), (5, [5, 5]), ([5, 6], [5, 6])], ids=str)
def test_task_3_the_offset_where_the_caches_end(offset: Any, end: Any) -> None:
    parts = FakeModelParts()
    parts.model(TOKENS, offset, [CacheThatEnds(end) for _ in range(3)])
    check_equal([len(layer.calls) for layer in parts.layers], [1, 1, 1], "calls of each layer")


def variant(name: str) -> Variant:
    return next(each for each in VARIANTS if each.name == name)


def assemble(config: ModelConfig, weights: dict[str, mx.array]) -> Qwen3Model:
    """A model from weights under their checkpoint names, without the loader."""
    rope = RoPE(config.head_dim, config.max_position_embeddings, config.rope_theta)

    def norm(name: str) -> RMSNorm | None:
        weight = weights.get(f"{name}.weight")
        return None if weight is None else RMSNorm(weight.size, weight, config.rms_norm_eps)

    def projection(name: str) -> Callable[[mx.array], mx.array]:
        return lambda x: linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def block(name: str) -> Qwen3TransformerBlock:
        own, mlp = (
            f"{name}.self_attn",
            [projection(f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down")],
        )
        attention = Qwen3MultiHeadAttention(
            config,
            *(projection(f"{own}.{part}_proj") for part in "qkvo"),
            rope=rope,
            q_norm=norm(f"{own}.q_norm"),
            k_norm=norm(f"{own}.k_norm"),
        )
        return Qwen3TransformerBlock(
            attention,
            Qwen3MLP(config.hidden_size, config.intermediate_size, *mlp),
            norm(f"{name}.input_layernorm"),
            norm(f"{name}.post_attention_layernorm"),
        )

    return Qwen3Model(
        config,
        Embedding(config.vocab_size, config.hidden_size, weights["model.embed_tokens.weight"]),
        [block(f"model.layers.{i}") for i in range(config.num_hidden_layers)],
        norm("model.norm"),
        projection("lm_head") if "lm_head.weight" in weights else None,
    )


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied", "qwen2", "llama"])
def test_task_3_the_whole_model_equals_mlx_lm(name: str) -> None:
    chosen = variant(name)
    oracle = build(chosen)
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    known = {key: value for key, value in {"head_dim": 32, **chosen.config}.items() if key in fields}
    model = assemble(ModelConfig(**known), dict(tree_flatten(oracle.parameters())))
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(78))
    with mx.stream(mx.cpu):
        expected = oracle(tokens)
    check_close(model(tokens), expected, f"logits of a random {name}", 1e-4, loader_mistakes(oracle, tokens))
    check_equal(model.config, ModelConfig(**known), "config of the model")


# --- task 4 -------------------------------------------------------------------------------------------------


def check_logits(model: Qwen3Model, oracle: Any, what: str) -> None:
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(80))
    with mx.stream(mx.cpu):
        expected = oracle(tokens)
    mistakes = {} if isinstance(oracle, Qwen3Model) else loader_mistakes(oracle, tokens)
    check_close(model(tokens), expected, what, 1e-4, mistakes)


@pytest.mark.parametrize(
    "changes", [{}, {"rms_norm_eps": 0.1}, {"num_hidden_layers": 1, "rope_theta": 100.0}], ids=str
)
def test_task_4_a_plain_model_equals_mlx_lm(changes: dict[str, Any]) -> None:
    chosen = dataclasses.replace(variant("qwen3"), changes=changes)
    oracle = build(chosen)
    model = build_plain_model(
        ModelConfig(**chosen.config, qk_norm=True), dict(tree_flatten(oracle.parameters()))
    )
    check_logits(model, oracle, f"logits of a random qwen3 with {changes}")


def test_task_4_the_shipped_model_equals_mlx_lm() -> None:
    from mlx_lm.utils import load_model as load_of_mlx_lm  # late: it takes a second

    checkpoint = resolve_checkpoint(SHIPPED_MODEL)
    tokens = mx.array([[5, 300, 17, 4000, 9]])
    with mx.stream(mx.cpu):
        expected = load_of_mlx_lm(checkpoint)[0](tokens)
    model = build_plain_model(*read_plain_checkpoint(checkpoint, mx.float32))
    check_close(model(tokens), expected, "logits of the shipped model", 1e-3)


# --- task 5 -------------------------------------------------------------------------------------------------


def read(**changes: Any) -> ModelConfig:
    """ModelConfig of a Llama's config.json with these changes; a change to ... takes the key out."""
    config = {"model_type": "llama", **BASE_CONFIG, **changes}
    return ModelConfig.from_dict({key: value for key, value in config.items() if value is not ...})


def check_field(config: ModelConfig, field: str, expected: Any) -> None:
    check_equal(getattr(config, field), expected, f"ModelConfig.{field}")


def test_task_5_sizes_are_taken_over() -> None:
    config = read()
    for field, expected in BASE_CONFIG.items():
        check_field(config, field, expected)
    check_field(config, "model_type", "llama")


def test_task_5_unknown_keys_are_ignored() -> None:
    check_equal(
        read(torch_dtype="bfloat16", eos_token_id=[1, 2], attention_dropout=0.0), read(), "the configuration"
    )


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 10000.0),
        ("tie_word_embeddings", None),
        ("num_key_value_heads", 6),
    ],
)
def test_task_5_what_a_missing_value_means(field: str, default: Any) -> None:
    check_field(read(**{field: ...}), field, default)


def test_task_5_key_heads_null_are_one_each() -> None:
    check_field(read(num_key_value_heads=None), "num_key_value_heads", 6)


@pytest.mark.parametrize("value", [..., None], ids=["missing", "null"])
def test_task_5_head_dim_follows_from_the_width(value: Any) -> None:
    check_field(read(head_dim=value, num_attention_heads=4), "head_dim", 32)


def test_task_5_head_dim_given_need_not_divide_the_width() -> None:
    check_field(read(head_dim=20, num_attention_heads=6), "head_dim", 20)


@pytest.mark.parametrize("is_tied", [True, False])
def test_task_5_tied_or_not_as_the_file_says(is_tied: bool) -> None:
    check_field(read(tie_word_embeddings=is_tied), "tie_word_embeddings", is_tied)


@pytest.mark.parametrize(
    ("model_type", "attention_bias", "qk_norm", "qkv_bias", "output_bias"),
    [
        ("qwen3", False, True, False, False),
        ("qwen3", True, True, True, True),
        ("qwen2", False, False, True, False),
        ("qwen2", True, False, True, False),
        ("llama", False, False, False, False),
        ("llama", True, False, True, True),
    ],
)
def test_task_5_norms_and_biases_of_each_family(
    model_type: str, attention_bias: bool, qk_norm: bool, qkv_bias: bool, output_bias: bool
) -> None:
    config = read(model_type=model_type, attention_bias=attention_bias)
    check_field(config, "qk_norm", qk_norm)
    check_field(config, "qkv_bias", qkv_bias)
    check_field(config, "output_bias", output_bias)
    check_field(config, "mlp_bias", False)


def test_task_5_theta_of_the_newer_spelling() -> None:
    config = read(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 7000.0})
    check_field(config, "rope_theta", 7000.0)
    check_field(config, "rope_scaling", None)


# --- task 6 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied", "qwen3-4bit", "qwen3-8bit", "qwen2", "llama"])
def test_task_6_a_loaded_model_equals_mlx_lm(name: str, tmp_path: Path) -> None:
    check_loaded(name, tmp_path)


def check_loaded(name: str, tmp_path: Path) -> None:
    oracle = build(variant(name))
    model = load_model(save(variant(name), oracle, tmp_path), mx.float32)
    check_logits(model, oracle, f"logits of {name}")


@pytest.mark.parametrize("name", ["qwen3-bfloat16", "qwen2", "qwen3-4bit"])
def test_task_6_computes_in_the_type_asked_for(name: str, tmp_path: Path) -> None:
    model = load_model(save(variant(name), build(variant(name)), tmp_path), mx.float16)
    check_equal(model(mx.array([[1, 2]])).dtype, mx.float16, "type of the logits")


def test_task_6_the_attention_function_reaches_every_layer(tmp_path: Path) -> None:
    calls = []

    def attention(query, key, value, scale=None, mask=None):  # type: ignore[no-untyped-def]
        calls.append(query.shape)
        return scaled_dot_product_attention_grouped(query, key, value, scale, mask)

    oracle = build(variant("qwen3"))
    model = load_model(save(variant("qwen3"), oracle, tmp_path), operations=Operations(attention=attention))
    check_logits(model, oracle, "logits with an attention from outside")
    check_equal(calls, [(2, 6, 11, 32)] * 3, "calls of the attention")


def test_task_6_the_model_is_made_of_the_operations_given(tmp_path: Path) -> None:
    made = []

    def noted(make):  # type: ignore[no-untyped-def]
        def note(*arguments, **named):  # type: ignore[no-untyped-def]
            made.append(make.__name__)
            return make(*arguments, **named)

        return note

    oracle = build(variant("qwen3"))
    operations = Operations(noted(RMSNorm), noted(RoPE), noted(Qwen3MLP), noted(HeadProjection))
    model = load_model(save(variant("qwen3"), oracle, tmp_path), operations=operations)
    check_logits(model, oracle, "logits with operations from outside")
    check_equal(made.count("Qwen3MLP"), 3, "MLPs made as the table says, for 3 layers")
    check_equal(made.count("HeadProjection"), 3, "projections to heads made as the table says, for 3 layers")
    check_equal(made.count("RMSNorm"), 13, "norms made as the table says, 4 a layer and the last")
    check_equal(made.count("RoPE"), 1, "rotations made as the table says, one that all layers share")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each checkpoint that the tests below change copies of."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("qwen3", "qwen3-untied", "llama", "qwen3-4bit", "llama-mixed-bits"):
        save(variant(name), build(variant(name)), folder / name)
    save(variant("qwen3"), build(variant("qwen3")), folder / "shards", num_shards=3)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a checkpoint of that name that a test may damage."""

    def copy_of(name: str) -> Path:
        return shutil.copytree(saved / name, tmp_path / name)

    return copy_of


Copy = Callable[[str], Path]


Weights = dict[str, mx.array]


def change_config(folder: Path, **changes: Any) -> None:
    """Rewrite config.json; a change to ... takes the key out."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({key: v for key, v in config.items() if v is not ...}))


def change_tensors(folder: Path, change: Callable[[Weights], Any]) -> None:
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "changed.safetensors"), weights)
    (folder / "changed.safetensors").replace(file)


def check_refused(folder: Path, **values: Any) -> None:
    with check_value_error(**values):
        load_model(folder)


def test_task_6_norms_of_heads_are_not_passed_over(copy: Copy) -> None:
    folder = copy("qwen3")
    change_config(folder, model_type="llama")
    check_refused(folder, name="_norm")


def test_task_6_an_untied_model_needs_its_head(copy: Copy) -> None:
    folder = copy("qwen3")
    change_config(folder, tie_word_embeddings=False)
    check_refused(folder, name="lm_head.weight")


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied"])
def test_task_6_the_tensors_decide_where_the_file_does_not(name: str, copy: Copy, saved: Path) -> None:
    folder = copy(name)
    change_config(folder, tie_word_embeddings=...)
    check_logits(
        load_model(folder), load_model(saved / name), f"logits of {name} that does not say it is tied"
    )


def test_task_6_biases_of_the_family_are_needed(copy: Copy) -> None:
    folder = copy("llama")
    change_config(folder, attention_bias=True)
    check_refused(folder, name="model.layers.0.self_attn.q_proj.bias")


def test_task_6_another_number_of_layers_is_noticed(copy: Copy) -> None:
    folder = copy("qwen3")
    change_config(folder, num_hidden_layers=2)
    check_refused(folder, name="model.layers.2.")


FOUR_BITS = {"group_size": 32, "bits": 4}


def test_task_6_both_spellings_of_a_quantization_as_mlx_lm_saves_them(copy: Copy, saved: Path) -> None:
    folder = copy("qwen3-4bit")
    change_config(folder, quantization_config=FOUR_BITS)
    check_logits(load_model(folder), load_model(saved / "qwen3-4bit"), "logits of a quantized model")


UP = "model.layers.1.mlp.up_proj"
NULLS = {"group_size": None, "bits": None, "mode": None}


@pytest.mark.parametrize(
    "quantization",
    [{"group_size": 64, "bits": 8}, {**FOUR_BITS, UP: {**NULLS, "bits": 4}}, NULLS, {}],
    ids=["others", "a layer's group size null", "all null", "nothing"],
)
def test_task_6_bits_and_groups_follow_from_the_shapes(
    quantization: dict[str, Any], copy: Copy, saved: Path
) -> None:
    folder = copy("qwen3-4bit")
    change_config(folder, quantization=quantization)
    check_logits(load_model(folder), load_model(saved / "qwen3-4bit"), "logits of a quantized model")


def test_task_6_packed_weights_whose_shapes_fit_nothing_are_refused(copy: Copy) -> None:
    folder = copy("qwen3-4bit")
    change_tensors(folder, lambda weights: weights.update({f"{UP}.scales": weights[f"{UP}.scales"][:, 1:]}))
    check_refused(folder, name=UP, num_inputs=128)


def test_task_6_packed_weights_need_their_biases(copy: Copy) -> None:
    folder = copy("qwen3-4bit")
    change_tensors(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.biases"))
    check_refused(folder, name="model.layers.1.mlp.up_proj")


def test_task_6_packed_weights_need_a_quantization(copy: Copy) -> None:
    folder = copy("qwen3-4bit")
    change_config(folder, quantization=...)
    check_refused(folder)


def test_task_6_a_tensor_is_taken_once() -> None:
    weight = normal(5, 7, seed=84)
    tensors = Tensors({"a.weight": weight})
    check_equal("a.weight" in tensors, True, "whether the tensor is there before it is taken")
    check_close(tensors.take("a.weight", 5, 7), weight, "tensor taken")
    check_equal("a.weight" in tensors, False, "whether the tensor is there after it was taken")
    with check_value_error(name="a.weight"):
        tensors.take("a.weight", 5, 7)


def test_task_6_the_dict_given_stays_whole() -> None:
    weights = {"a.weight": normal(5, 7, seed=84)}
    Tensors(weights).take("a.weight", 5, 7)
    check_equal(list(weights), ["a.weight"], "names in the dict after a tensor was taken")


def test_task_6_a_projection_with_its_bias() -> None:
    weight, bias, x = normal(5, 7, seed=84), normal(5, seed=85), normal(3, 7, seed=86)
    tensors = Tensors({"a.weight": weight, "a.bias": bias})
    check_close(tensors.take_projection("a", 5, 7, True)(x), x @ weight.T + bias, "projection with a bias")
    tensors.check_all_used(is_tied=False)


def test_task_6_a_norm_with_its_eps() -> None:
    weight, x = normal(7, seed=84), 0.1 * normal(3, 7, seed=86)
    norm = Tensors({"n.weight": weight}).take_norm("n", 7, 0.5)
    check_close(norm(x), rms_norm(exact(x), exact(weight), 0.5), "norm with eps 0.5")


def test_task_6_build_model_takes_every_tensor() -> None:
    oracle = build(variant("llama-mlp-bias"))
    tensors = Tensors(dict(tree_flatten(oracle.parameters())))
    model = build_model(ModelConfig.from_dict(variant("llama-mlp-bias").config), tensors)
    tensors.check_all_used(is_tied=False)
    check_logits(model, oracle, "logits of a model built from tensors")


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_task_6_computes_in_the_type_of_the_checkpoint(dtype: mx.Dtype, tmp_path: Path) -> None:
    chosen = dataclasses.replace(variant("qwen3"), dtype=dtype)
    model = load_model(save(chosen, build(chosen), tmp_path))
    check_equal(model(mx.array([[1, 2]])).dtype, dtype, "type of the logits")


NEEDED = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.2.self_attn.q_norm.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.2.post_attention_layernorm.weight",
]


@pytest.mark.parametrize("name", NEEDED)
def test_task_6_a_missing_tensor_is_named(name: str, copy: Copy) -> None:
    folder = copy("qwen3")
    change_tensors(folder, lambda weights: weights.pop(name))
    check_refused(folder, name=name)


UNUSED = [
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.1.mlp.gate_proj.bias",
    "model.layers.3.input_layernorm.weight",
    "model.layers.0.mlp.experts.0.up_proj.weight",
    "visual.patch_embed.weight",
    "model.layers.0.self_attn.rotary_emb.weight",
    "lm_head.bias",
]


@pytest.mark.parametrize("name", UNUSED)
def test_task_6_a_tensor_too_many_is_named(name: str, copy: Copy) -> None:
    folder = copy("qwen3-untied")
    change_tensors(folder, lambda weights: weights.update({name: normal(128, seed=81)}))
    check_refused(folder, name=name)


def test_task_6_frequencies_of_older_checkpoints_are_passed_over(copy: Copy, saved: Path) -> None:
    folder, name = copy("llama"), "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda weights: weights.update({name: normal(16, seed=82)}))
    check_logits(load_model(folder), load_model(saved / "llama"), "logits with inv_freq in the file")


def test_task_6_a_spare_head_of_a_tied_model_is_passed_over(copy: Copy, saved: Path) -> None:
    folder = copy("qwen3")
    change_tensors(folder, lambda weights: weights.update({"lm_head.weight": normal(160, 128, seed=83)}))
    check_logits(load_model(folder), load_model(saved / "qwen3"), "logits of a tied model with a spare head")


def test_task_6_a_packed_spare_head_is_passed_over_whole(copy: Copy, saved: Path) -> None:
    folder = copy("qwen3-4bit")
    names = ("lm_head.weight", "lm_head.scales", "lm_head.biases")
    packed = mx.quantize(normal(160, 128, seed=83), group_size=32, bits=4)
    change_tensors(folder, lambda weights: weights.update(zip(names, packed, strict=True)))
    what = "logits of a tied model with a packed spare head"
    check_logits(load_model(folder), load_model(saved / "qwen3-4bit"), what)


def test_task_6_a_layer_with_bits_of_its_own_need_not_say_them(copy: Copy, saved: Path) -> None:
    folder = copy("llama-mixed-bits")
    change_config(folder, quantization=FOUR_BITS)
    check_logits(load_model(folder), load_model(saved / "llama-mixed-bits"), "logits with a head of 8 bits")


@pytest.mark.parametrize("own", [{"bits": 8}, {"group_size": 128}, {}], ids=str)
def test_task_6_a_layer_of_its_own_as_mlx_lm_reads_it(own: dict[str, int], tmp_path: Path) -> None:
    quantization = {"group_size": 32, "bits": 8, "lm_head": own}
    chosen = dataclasses.replace(variant("llama-mixed-bits"), quantization=quantization)
    oracle = build(chosen)
    check_logits(load_model(save(chosen, oracle, tmp_path)), oracle, f"logits with {own} for the head")


def test_task_6_packed_weights_are_not_rounded_to_the_type_of_their_scales(tmp_path: Path) -> None:
    chosen = variant("qwen3-8bit-bfloat16")
    oracle = build(chosen)
    folder = save(chosen, oracle, tmp_path)
    oracle.set_dtype(mx.float32)
    check_logits(load_model(folder, mx.float32), oracle, "logits in float32 of weights packed in bfloat16")


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_task_6_other_modes_are_refused(mode: str, copy: Copy) -> None:
    folder, other = copy("qwen3-4bit"), {"group_size": 16, "bits": 4, "mode": mode}
    for quantization in (other, {**FOUR_BITS, "model.layers.1.mlp.up_proj": other}):
        change_config(folder, quantization=quantization)
        check_refused(folder, mode=mode)


def test_task_6_packed_weights_that_are_no_matrix_are_refused(copy: Copy) -> None:
    folder, name = copy("qwen3-4bit"), "model.layers.1.mlp.up_proj"
    change_tensors(folder, lambda weights: weights.update({f"{name}.scales": mx.zeros(())}))
    check_refused(folder, name=name)


@pytest.mark.parametrize("own", [{}, {"a": {"bits": 4, "mode": "mxfp4"}}], ids=["of all", "of a layer"])
def test_task_6_only_the_affine_mode_has_a_layout(own: dict[str, Any]) -> None:
    mode = "affine" if own else "mxfp4"
    with check_value_error(layer="a", mode="mxfp4"):
        Quantization({**FOUR_BITS, "mode": mode, **own}).layout(
            "a", 64, mx.zeros((5, 8), mx.uint32), mx.zeros((5, 2)), mx.zeros((5, 2))
        )


def add_tokenizer(folder: Path) -> None:
    """One token a word; "<end>" is the end of text as the tokenizer's own file says."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<end>", "<stop>", "<turn>", "the", "cat", "sat"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_task_6_load_gives_model_and_tokenizer(copy: Copy, saved: Path) -> None:
    folder = copy("qwen3")
    add_tokenizer(folder)
    model, tokenizer = load(str(folder))
    check_equal(tokenizer.encode("the cat sat"), [3, 4, 5], "tokens of 'the cat sat'")
    check_logits(model, load_model(saved / "qwen3"), "logits of the loaded model")


# --- task 7 -------------------------------------------------------------------------------------------------


REQUIRED = [
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "vocab_size", "max_position_embeddings",
]  # fmt: skip


@pytest.mark.parametrize("value", [..., None], ids=["missing", "null"])
@pytest.mark.parametrize("key", REQUIRED)
def test_task_7_a_value_missing_is_named(key: str, value: Any) -> None:
    with check_value_error(key=key):
        read(**{key: value})


OPTIONAL = [
    "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_traditional",
    "rope_scaling", "rope_parameters", "partial_rotary_factor", "tie_word_embeddings", "attention_bias",
    "mlp_bias", "layer_types", "use_sliding_window", "sliding_window", "max_window_layers", "quantization",
]  # fmt: skip


@pytest.mark.parametrize("key", OPTIONAL)
def test_task_7_null_counts_as_missing(key: str) -> None:
    size = {"num_attention_heads": 4}  # so that a head_dim follows
    check_equal(read(**{**size, key: None}), read(**{**size, key: ...}), f"the config where {key!r} is null")


ROPE_KEYS = ["rope_theta", "type", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
             "mscale_all_dim", "partial_rotary_factor"]  # fmt: skip


@pytest.mark.parametrize("key", ROPE_KEYS)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_task_7_null_counts_as_missing_for_rope(spelling: str, key: str) -> None:
    actual = read(**{spelling: {**YARN, key: None}})
    check_equal(actual, read(**{spelling: YARN}), f"the config where {key!r} of {spelling} is null")


def test_task_7_head_dim_that_does_not_follow_is_refused() -> None:
    with check_value_error(num_attention_heads=6, hidden_size=128):
        read(head_dim=..., num_attention_heads=6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "128"),
        ("hidden_size", 128.0),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 4),
        ("max_position_embeddings", 2**63),
        ("head_dim", [32]),
        ("rms_norm_eps", math.nan),
        ("rope_theta", {}),
        ("rope_parameters", "default"),
        ("tie_word_embeddings", "yes"),
        ("layer_types", 3),
        ("quantization", {"bits": 0}),
        ("quantization", {"lm_head": {"group_size": "64"}}),
    ],
    ids=str,
)
def test_task_7_a_value_of_the_wrong_kind_is_refused(key: str, value: Any) -> None:
    with check_value_error(key=key, what=f"a config.json whose {key} is {value!r}"):
        read(**{key: value})


@pytest.mark.parametrize("field", ["mlp_bias", "rope_traditional"])
@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), (False, False), (..., False)], ids=["on", "off", "missing"]
)
def test_task_7_switches_are_off_unless_on(field: str, value: Any, expected: bool) -> None:
    check_field(read(**{field: value}), field, expected)


def test_task_7_theta_of_the_newer_spelling_comes_first() -> None:
    check_field(read(rope_theta=5000.0, rope_parameters={"rope_theta": 7000.0}), "rope_theta", 7000.0)


def test_task_7_the_newer_spelling_is_laid_over_the_older() -> None:
    config = read(rope_scaling=YARN, rope_parameters={"factor": 8.0, "rope_theta": 7000.0, "rope_type": None})
    check_field(config, "rope_scaling", YarnScaling(8.0, 128, 1 + math.log(8) / 10))
    check_field(config, "rope_theta", 7000.0)


@pytest.mark.parametrize(
    "scaling", [None, ..., {"rope_type": "default"}, {"type": "default"}, {}, {"factor": 2.0}], ids=str
)
def test_task_7_no_scaling(scaling: Any) -> None:
    check_field(read(rope_scaling=scaling), "rope_scaling", None)


LINEAR = {"rope_type": "linear", "factor": 2.5}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


LLAMA3_EXPECTED = Llama3Scaling(4.0, 1.0, 4.0, 128)


USUAL = 1 + math.log(4) / 10


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (LINEAR, LinearScaling(2.5)),
        (LLAMA3, LLAMA3_EXPECTED),
        ({**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 5.0}, Llama3Scaling(4.0, 2.0, 5.0, 128)),
        (YARN, YarnScaling(4.0, 128, USUAL)),
        ({**YARN, "beta_fast": 16, "beta_slow": 2}, YarnScaling(4.0, 128, USUAL, 16, 2)),
        ({**YARN, "beta_fast": None, "beta_slow": None}, YarnScaling(4.0, 128, USUAL, 32.0, 1.0)),
        ({**YARN, "truncate": False}, YarnScaling(4.0, 128, USUAL, truncate=False)),
    ],
    ids=["linear", "llama3", "llama3 factors", "yarn", "yarn betas", "yarn null betas", "yarn not truncated"],
)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_task_7_scalings(spelling: str, key: str, scaling: dict[str, Any], expected: Any) -> None:
    values = {key if name == "rope_type" else name: value for name, value in scaling.items()}
    check_field(read(**{spelling: values}), "rope_scaling", expected)


def test_task_7_the_newer_name_of_the_kind_comes_first() -> None:
    both = {"rope_type": "linear", "type": "yarn", "factor": 2.5}
    check_field(read(rope_scaling=both), "rope_scaling", LinearScaling(2.5))


@pytest.mark.parametrize(
    ("changes", "amplitude"),
    [
        ({}, USUAL),
        ({"factor": 1.0}, 1.0),
        ({"attention_factor": 1.5}, 1.5),
        ({"attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.5),
        ({"attention_factor": None}, USUAL),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, USUAL / (1 + math.log(4) / 20)),
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, 1.0),
    ],
    ids=str,
)
def test_task_7_amplitude_of_yarn(changes: dict[str, Any], amplitude: float) -> None:
    scaling = read(rope_scaling={**YARN, **changes}).rope_scaling
    assert isinstance(scaling, YarnScaling)
    check_equal(scaling.amplitude, pytest.approx(amplitude), f"amplitude of yarn with {changes}")


@pytest.mark.parametrize("key", ["mscale", "mscale_all_dim"])
def test_task_7_one_mscale_of_two_is_refused(key: str) -> None:
    with check_value_error(key="mscale"):
        read(rope_scaling={**YARN, key: 0.7})


@pytest.mark.parametrize(
    ("scaling", "key"),
    [(scaling, key) for scaling in (LINEAR, LLAMA3, YARN) for key in scaling if key != "rope_type"],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else None,
)
def test_task_7_a_scaling_that_lacks_a_value_is_refused(scaling: dict[str, Any], key: str) -> None:
    with check_value_error(key=key):
        read(rope_scaling={name: value for name, value in scaling.items() if name != key})


SLIDING = {"use_sliding_window": True, "sliding_window": 64}


REFUSED = {
    "a sliding window from layer null on": (
        {**SLIDING, "max_window_layers": None},
        {"key": "use_sliding_window"},
    ),
    "mixture of experts": ({"model_type": "qwen3_moe"}, {"model_type": "qwen3_moe"}),
    "another family": ({"model_type": "gemma3"}, {"model_type": "gemma3"}),
    "another family, whose sizes are elsewhere": (
        {"model_type": "qwen3_5", "text_config": {"hidden_size": 64}, **dict.fromkeys(REQUIRED[1:])},
        {"model_type": "qwen3_5"},
    ),
    "another family, whose sizes are of other kinds": (
        {"model_type": "openelm", "num_key_value_heads": [2, 3]},
        {"model_type": "openelm"},
    ),
    "a window of Mistral": ({"model_type": "mistral", "sliding_window": 64}, {"key": "sliding_window"}),
    "another activation": ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}),
    "part of each head rotated": ({"partial_rotary_factor": 0.5}, {"key": "partial_rotary_factor"}),
    "part of each head rotated, newer": (
        {"rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
        {"key": "partial_rotary_factor"},
    ),
    "a RoPE for each kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 5000.0}}},
        {"key": "rope_parameters"},
    ),
    "unknown scaling": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {"rope_type": "dynamic"}),
    "unknown scaling, older": (
        {"rope_scaling": {"type": "longrope", "factor": 2.0}},
        {"rope_type": "longrope"},
    ),
    "unknown scaling, newer": (
        {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
        {"rope_type": "ntk"},
    ),
    "sliding layers": (
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"key": "layer_types"},
    ),
    "sliding window": (
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        {"key": "use_sliding_window"},
    ),
    "sliding everywhere": ({"use_sliding_window": True, "sliding_window": 64}, {"key": "use_sliding_window"}),
}


@pytest.mark.parametrize(("changes", "shown"), REFUSED.values(), ids=REFUSED)
def test_task_7_what_this_model_does_not_do_is_refused(
    changes: dict[str, Any], shown: dict[str, str]
) -> None:
    with check_value_error(**shown):
        read(**changes)


HARMLESS = {
    "silu": {"hidden_act": "silu"},
    "whole heads rotated": {"partial_rotary_factor": 1.0},
    "full layers": {"layer_types": ["full_attention"] * 3},
    "window turned off": {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 2},
    "window without size": {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 2},
    "window above all layers": {**SLIDING, "max_window_layers": 3},
    "window as long as the context": {**SLIDING, "sliding_window": 512},
}


@pytest.mark.parametrize("changes", HARMLESS.values(), ids=HARMLESS)
def test_task_7_what_changes_nothing_is_accepted(changes: dict[str, Any]) -> None:
    check_equal(read(**changes), read(), "the configuration")


@pytest.mark.parametrize("window", [..., None, 512], ids=["missing", "null", "as long as the context"])
def test_task_7_mistral_without_a_window_is_a_llama(window: Any) -> None:
    mistral = read(model_type="mistral", sliding_window=window)
    check_equal(mistral, dataclasses.replace(read(), model_type="mistral"), "the configuration")


LOADED = [
    "qwen3-rope-parameters", "qwen3-yarn", "qwen2-4bit", "llama-mixed-bits", "llama-one-kv-head-each",
    "llama-attention-bias", "llama-mlp-bias", "llama-traditional", "llama-llama3",
]  # fmt: skip


@pytest.mark.parametrize("name", LOADED)
def test_task_7_other_checkpoints_equal_mlx_lm(name: str, tmp_path: Path) -> None:
    check_loaded(name, tmp_path)


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_task_7_shards_with_an_index(num_shards: int, tmp_path: Path) -> None:
    oracle = build(variant("qwen3"))
    check_logits(
        load_model(save(variant("qwen3"), oracle, tmp_path, num_shards)), oracle, f"{num_shards} shards"
    )


@pytest.mark.parametrize("name", NEEDED)
def test_task_7_a_tensor_of_another_shape_is_named(name: str, copy: Copy) -> None:
    folder = copy("qwen3")
    change_tensors(folder, lambda weights: weights.update({name: weights[name][:-1]}))
    check_refused(folder, name=name)


def test_task_7_a_transposed_weight_is_named(copy: Copy) -> None:
    folder, name = copy("qwen3"), "model.layers.1.mlp.gate_proj.weight"
    change_tensors(folder, lambda weights: weights.update({name: mx.contiguous(weights[name].T)}))
    check_refused(folder, name=name, shape=(128, 256), **{"tensor.shape": (256, 128)})


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint8, mx.int32, mx.uint32], ids=str)
def test_task_7_weights_that_are_no_floats_are_refused(dtype: mx.Dtype, copy: Copy) -> None:
    """Checkpoints in 8-bit floats come out as uint8."""
    folder, name = copy("qwen3"), "model.layers.1.mlp.up_proj.weight"
    change_tensors(folder, lambda weights: weights.update({name: (100 * weights[name]).astype(dtype)}))
    for asked_for in (None, mx.float32):
        with check_value_error(name=name, **{"tensor.dtype": dtype}):
            load_model(folder, asked_for)


@pytest.mark.parametrize("parts", [("scales", "biases"), ("biases",)], ids=["neither", "scales only"])
def test_task_7_packed_weights_need_their_scales_and_biases(parts: tuple[str, ...], copy: Copy) -> None:
    folder, layer = copy("qwen3-4bit"), "model.layers.1.mlp.up_proj"
    change_tensors(folder, lambda weights: [weights.pop(f"{layer}.{part}") for part in parts])
    check_refused(folder, name=layer)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"])
def test_task_7_another_method_of_quantization_is_named(method: str, copy: Copy) -> None:
    folder = copy("qwen3")
    change_config(folder, quantization_config={"quant_method": method, "bits": 4})
    check_refused(folder, quant_method=method)


@pytest.mark.parametrize("prefix", ["", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize("name", ["qwen3-4bit", "qwen3-untied"])
def test_task_7_names_may_begin_otherwise(name: str, prefix: str, copy: Copy, saved: Path) -> None:
    folder = copy(name)

    def rename(weights: Weights) -> None:
        for old in [each for each in weights if each.startswith("model.")]:
            weights[prefix + old.removeprefix("model.")] = weights.pop(old)
        if prefix.startswith("language_model.") and "lm_head.weight" in weights:
            weights["language_model.lm_head.weight"] = weights.pop("lm_head.weight")

    change_tensors(folder, rename)
    check_logits(load_model(folder), load_model(saved / name), f"logits of tensors named {prefix}...")


def test_task_7_the_vision_part_of_a_model_is_not_passed_over(copy: Copy) -> None:
    folder = copy("qwen3")

    def rename(weights: Weights) -> None:
        for old in list(weights):
            weights[old.replace("model.", "model.language_model.")] = weights.pop(old)
        weights["model.visual.patch_embed.weight"] = normal(7, seed=81)

    change_tensors(folder, rename)
    check_refused(folder, name="model.visual.patch_embed.weight")


# Files that are not whole


@pytest.mark.parametrize(
    "name", ["model-00001-of-00001.safetensors", "model_00001.safetensors", "model-q4.safetensors"]
)
def test_task_7_one_file_of_another_name_needs_no_index(name: str, copy: Copy, saved: Path) -> None:
    folder = copy("qwen3")
    (folder / "model.safetensors").rename(folder / name)
    check_logits(load_model(folder), load_model(saved / "qwen3"), f"logits of a model in {name}")


def test_task_7_shards_without_an_index(copy: Copy, saved: Path) -> None:
    folder = copy("shards")
    (folder / "model.safetensors.index.json").unlink()
    check_logits(load_model(folder), load_model(saved / "qwen3"), "logits of shards without an index")
    (folder / "model-00003-of-00003.safetensors").unlink()
    check_refused(folder, name="model-00003-of-00003.safetensors")


def test_task_7_a_stale_index_is_named(copy: Copy) -> None:
    folder = copy("qwen3")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_refused(folder, name="model.safetensors.index.json")


@pytest.mark.parametrize("name", ["weights.00.safetensors", "pytorch_model.bin", "model-Q4_K_M.gguf"])
def test_task_7_files_of_another_kind_are_named(name: str, copy: Copy) -> None:
    folder = copy("qwen3")
    (folder / "model.safetensors").rename(folder / name)
    check_refused(folder, name=name)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F64", "C64"])
def test_task_7_types_that_are_not_supported_are_named(dtype: str, copy: Copy) -> None:
    folder = copy("qwen3")
    content = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["model.norm.weight"]["dtype"] = dtype
    text = json.dumps(header).encode()
    file = len(text).to_bytes(8, "little") + text + content[8 + size :]
    (folder / "model.safetensors").write_bytes(file)
    with check_value_error(name="model.norm.weight", what=f"a tensor of type {dtype}"):
        load_model(folder)


def test_task_7_a_missing_shard_is_named(copy: Copy) -> None:
    folder = copy("shards")
    (folder / "model-00002-of-00003.safetensors").unlink()
    check_refused(folder, name="model-00002-of-00003.safetensors")


def test_task_7_a_tensor_that_the_index_promises_is_named(copy: Copy) -> None:
    folder = copy("shards")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00003.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_refused(folder, name="lm_head.weight")


@pytest.mark.parametrize("size", [-1, -100_000, 5000], ids=["last byte", "much", "nearly all"])
def test_task_7_a_file_cut_short_is_refused(size: int, copy: Copy) -> None:
    folder = copy("qwen3")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:size])
    check_refused(folder, name="model.safetensors")


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"version https://git-lfs.github.com/spec/v1\n", b"<!doctype html>" * 9, b"\0" * 64],
    ids=["empty", "short", "a pointer of git-lfs", "a page", "zeros"],
)
def test_task_7_a_file_of_another_kind_is_refused(content: bytes, copy: Copy) -> None:
    folder = copy("qwen3")
    (folder / "model.safetensors").write_bytes(content)
    check_refused(folder, name="model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_task_7_a_missing_file_is_named(name: str, copy: Copy) -> None:
    folder = copy("qwen3")
    (folder / name).unlink()
    check_refused(folder, name=name)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "<html>"])
def test_task_7_a_broken_configuration_is_refused(content: str, copy: Copy) -> None:
    folder = copy("qwen3")
    (folder / "config.json").write_text(content)
    check_refused(folder, name="config.json")


def test_task_7_a_model_not_supported_is_refused(copy: Copy) -> None:
    folder = copy("qwen3")
    change_config(folder, model_type="qwen3_moe")
    check_refused(folder, model_type="qwen3_moe")


def test_task_7_load_in_a_type(copy: Copy) -> None:
    folder = copy("qwen3")
    add_tokenizer(folder)
    check_equal(load(folder, mx.float16)[0](mx.array([[1, 2]])).dtype, mx.float16, "type of the logits")


@pytest.mark.parametrize(
    ("config", "generation_config", "ids"),
    [
        (1, None, {0, 1}),
        ([1, 2], None, {0, 1, 2}),
        (1, 2, {0, 2}),
        (1, [1, 2], {0, 1, 2}),
        (1, ..., {0, 1}),
        (0, [2], {0, 2}),
        (..., None, {0}),
    ],
    ids=lambda value: "missing" if value is ... else None if isinstance(value, int) else str(value),
)
def test_task_7_end_of_text_ids(config: Any, generation_config: Any, ids: set[int], copy: Copy) -> None:
    """generation_config.json comes before config.json; the tokenizer's own is always one of them."""
    folder = copy("qwen3")
    add_tokenizer(folder)
    change_config(folder, eos_token_id=config)
    if generation_config is not None:
        content = {} if generation_config is ... else {"eos_token_id": generation_config}
        (folder / "generation_config.json").write_text(json.dumps(content))
    check_equal(set(load(folder)[1].eos_token_ids), ids, "end-of-text ids")


def test_task_7_a_missing_tokenizer_is_named(saved: Path) -> None:
    with check_value_error(name="tokenizer.json"):
        load(saved / "qwen3")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "/nowhere/at/all", "qwen3/config.json"])
def test_task_7_a_folder_that_is_not_there_is_named(
    name: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    load_model(Path("qwen3"))  # here folders are found by their names
    with check_value_error(path_or_repo=name):
        load(str(saved / name) if name.startswith("qwen3") else name)
