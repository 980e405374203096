"""Week 4 day 2: mixture of experts."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx.utils import tree_flatten

from tests.support.bits import check_bits
from tests.support.causes import Mistakes
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import MOE_VARIANTS, Variant, build, loader_mistakes, save
from tests.support.counting import Counted, check_calls
from tests.support.cpu_kernels import (
    check_threads,
    compiled_for,
    on_every_target,
    poison,
    spread,
    threads,
    use_device,
)
from tests.support.fences import FencedKernel
from tests.support.oracles import LOW_PRECISION, Array, exact, silu, softmax
from tests.support.precision import check_rounded_once, check_types, short_name, softmax_tolerance
from tests.support.quantized import expanded_by, random_words
from tiny_llm import (
    ExpertWeights,
    ModelConfig,
    MoeConfig,
    QuantizedWeights,
    Qwen3MLP,
    Qwen3Model,
    SparseMoe,
    expected_num_experts,
    group_by_expert,
    grouped_matmul_simple,
    linear,
    load_moe_model,
    route,
)
from tiny_llm.kernels import dispatch_grouped_matmul as dispatch
from tiny_llm.kernels.dispatch_grouped_matmul import (
    dispatch_grouped_matmul,
    grouped_matmul_cpu,
    grouped_matmul_mlx,
)
from tiny_llm.model.loader import Quantization, Tensors
from tiny_llm.model.moe_loader import build_moe, flatten_experts, take_experts
from tiny_llm.model.operations import Operations

Integers = npt.NDArray[np.int64]

# --- task 1: the router -------------------------------------------------------------------------------------

SIZES = [(7, 11, 3), (1, 5, 1), (5, 13, 13), (1, 128, 8), (301, 67, 4)]
sizes = pytest.mark.parametrize(("T", "X", "k"), SIZES)
normalized_or_not = pytest.mark.parametrize("is_normalized", [False, True], ids=["as they are", "normalized"])


def likeliest(logits: mx.array, k: int) -> Integers:
    """[T, k], of equal logits the first."""
    return np.argsort(-exact(logits), axis=-1, kind="stable")[:, :k]


def chosen_weights(probabilities: Array, experts: Integers, is_normalized: bool) -> Array:
    weights = np.take_along_axis(probabilities, experts, axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True) if is_normalized else weights


def check_route(logits: mx.array, k: int, is_normalized: bool, what: str = "") -> None:
    """Compare the experts and their weights with those of numpy in float64."""
    __tracebackhide__ = True
    experts, weights = route(logits, k, is_normalized)
    what = what or f"of logits {logits.shape}, k = {k}"
    right, probabilities = likeliest(logits, k), softmax(exact(logits))
    ascending = np.argsort(exact(logits), axis=-1, kind="stable")
    mistakes: dict[str, Any] = {
        "the least likely experts": ascending[:, :k],
        "the likeliest last": right[:, ::-1],
        "of equal logits the last one first": ascending[:, ::-1][:, :k],
        "the chosen ones by their numbers": np.sort(right, axis=-1),
    }
    check_equal(
        np.array(experts).tolist(),
        right.tolist(),
        f"experts {what}",
        {n: m.tolist() for n, m in mistakes.items()},
    )
    expected = chosen_weights(probabilities, right, is_normalized)
    raw = chosen_weights(probabilities, right, False)
    check_close(
        weights,
        expected,
        f"weights {what}",
        softmax_tolerance(logits, 1e-6),
        {
            "weights that sum to 1 for each token, which was not asked for": chosen_weights(
                probabilities, right, True
            ),
            "probabilities that are not divided by their sum": raw,
            "weights divided by the sum of all tokens' weights": raw / raw.sum(),
            "the logits of the chosen": np.take_along_axis(exact(logits), right, axis=-1),
        },
    )


@sizes
@normalized_or_not
def test_task_1_experts_and_weights(T: int, X: int, k: int, is_normalized: bool) -> None:
    check_route(2 * normal(T, X, seed=1), k, is_normalized)


@normalized_or_not
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_1_softmax_in_float32(dtype: mx.Dtype, is_normalized: bool) -> None:
    logits = 3 * normal(97, 61, seed=2)
    check_route(logits.astype(dtype), 7, is_normalized, f"of logits in {short_name(dtype)}")


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_task_1_types(dtype: mx.Dtype) -> None:
    experts, weights = route(normal(3, 7, seed=3, dtype=dtype), 2, True)
    check_equal((experts.dtype, weights.dtype), (mx.int32, mx.float32), "types of experts and weights")


@pytest.mark.parametrize("X", [7, 300])
def test_task_1_of_equal_experts_the_first(X: int) -> None:
    check_route(mx.zeros((2, X)), 5, False, "of equal logits")
    few = mx.random.randint(0, 3, (11, X), key=mx.random.key(4)).astype(mx.float32)
    check_route(few, 5, True, "of logits many of which are equal")


@normalized_or_not
def test_task_1_all_experts_chosen(is_normalized: bool) -> None:
    _, weights = route(normal(5, 7, seed=5), 7, is_normalized)
    check_close(weights.sum(axis=-1), np.ones(5), "sums of the weights if every expert is chosen", 1e-6)


def test_task_1_one_expert_per_token() -> None:
    _, weights = route(normal(5, 7, seed=5), 1, True)
    check_close(weights, np.ones((5, 1)), "normalized weights of one expert per token", 1e-6)


def test_task_1_large_logits() -> None:
    logits = mx.array([[1000.0, 999.0, -1000.0], [-5000.0, -5001.0, -4999.5]])
    check_route(logits, 2, False, "of large logits")


# --- task 2: rows by expert ---------------------------------------------------------------------------------


def random_choices(T: int, X: int, k: int, seed: int = 1) -> Integers:
    """[T, k], k different experts per token."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(X)[:k] for _ in range(T)])


NOT_INVERTED = "the unsorted row at each place: it takes the inverse of this order to bring the rows back"


def check_grouping(chosen: Integers, what: str) -> None:
    """Compare tokens, experts and places with those of a stable sort."""
    __tracebackhide__ = True
    T, k = chosen.shape
    flat = chosen.reshape(-1)
    order = np.argsort(flat, kind="stable")
    inverse = np.argsort(order, kind="stable")
    reverse = np.lexsort((-np.arange(T * k), flat))
    tokens, experts, places = (np.array(x) for x in group_by_expert(mx.array(chosen.astype(np.int32))))
    check_equal(
        tokens.tolist(),
        (order // k).tolist(),
        f"tokens of the rows, {what}",
        {
            "the numbers of the unsorted rows, of which a token has k": order.tolist(),
            "which of its token's choices a row is": (order % k).tolist(),
            "the last token of each expert first": (reverse // k).tolist(),
            "the tokens unsorted": (np.arange(T * k) // k).tolist(),
        },
    )
    check_equal(
        experts.tolist(),
        flat[order].tolist(),
        f"experts of the rows, {what}",
        {"the experts unsorted": flat.tolist()},
    )
    check_equal(
        places.tolist(),
        inverse.reshape(T, k).tolist(),
        f"places of the tokens, {what}",
        {NOT_INVERTED: order.reshape(T, k).tolist()},
    )


def test_task_2_rows_by_hand() -> None:
    tokens, experts, places = group_by_expert(mx.array([[2, 0], [0, 1], [2, 1]]))
    check_equal(tokens.tolist(), [0, 1, 1, 2, 0, 2], "tokens of the rows of [[2, 0], [0, 1], [2, 1]]")
    check_equal(experts.tolist(), [0, 0, 1, 1, 2, 2], "experts of the rows of [[2, 0], [0, 1], [2, 1]]")
    check_equal(
        places.tolist(),
        [[4, 0], [1, 2], [5, 3]],
        "places of [[2, 0], [0, 1], [2, 1]]",
        {NOT_INVERTED: [[1, 2], [3, 5], [0, 4]]},
    )


@sizes
def test_task_2_rows_by_expert(T: int, X: int, k: int) -> None:
    check_grouping(random_choices(T, X, k), f"{T} tokens, {k} of {X} experts each")


def test_task_2_many_tokens() -> None:
    check_grouping(random_choices(2311, 128, 8), "2311 tokens, 8 of 128 experts each")


def test_task_2_experts_without_tokens() -> None:
    check_grouping(np.array([[9, 2], [2, 40], [9, 40]]), "three experts of many")


@pytest.mark.parametrize("T", [1, 2, 500])
def test_task_2_one_expert_for_all(T: int) -> None:
    check_grouping(np.full((T, 1), 3), f"{T} tokens, all of expert 3")


def test_task_2_places_bring_the_rows_back() -> None:
    chosen = mx.array(random_choices(53, 17, 5).astype(np.int32))
    tokens, experts, places = group_by_expert(chosen)
    check_equal(experts[places].tolist(), chosen.tolist(), "experts at the places of the tokens")
    own = np.repeat(np.arange(53)[:, None], 5, axis=1)
    check_equal(tokens[places].tolist(), own.tolist(), "tokens at the places of the tokens")


@pytest.mark.parametrize(
    ("X", "k", "T", "expected"),
    [
        (8, 2, 1, 2),
        (8, 2, 0, 0),
        (4, 4, 3, 4),
        (4, 1, 2, 1.75),
        (3, 2, 2, 8 / 3),
        (128, 8, 1, 8),
        (1, 1, 5, 1),
    ],
)
def test_task_2_number_of_experts_by_hand(X: int, k: int, T: int, expected: float) -> None:
    actual = expected_num_experts(X, k, T)
    if abs(actual - expected) > 1e-9 * X:
        fail(
            f"experts read by {T} tokens, {k} of {X} each: expected {expected:.6g}, got {actual:.6g}",
            "The k experts of one token are all different."
            if abs(actual - X * (1 - (1 - 1 / X) ** (k * T))) < 1e-9
            else None,
            "Several tokens may choose the same expert." if actual == min(X, k * T) else None,
        )


@pytest.mark.parametrize(("X", "k", "T"), [(11, 3, 4), (64, 8, 5), (128, 8, 32)])
def test_task_2_number_of_experts_of_drawn_choices(X: int, k: int, T: int) -> None:
    counts = [len(np.unique(random_choices(T, X, k, seed))) for seed in range(400)]
    mean, actual = float(np.mean(counts)), expected_num_experts(X, k, T)
    if abs(actual - mean) > 0.02 * X:
        fail(f"{T} tokens that draw {k} of {X} experts read {mean:.1f} on average, not {actual:.1f}")


# --- task 3: the mixture ------------------------------------------------------------------------------------


def make_experts(
    X: int, N: int, K: int, bits: int = 4, group_size: int = 32, dtype: mx.Dtype = mx.float32, seed: int = 1
) -> ExpertWeights:
    """Codes, scales and biases drawn apart from each other, the product's terms about as large as 1."""
    scales, biases = normal(2, X * N, K // group_size, seed=seed + 1)
    packed = QuantizedWeights(
        random_words(X * N, K * bits // 32, seed=seed),
        (scales / 2 ** (bits - 1)).astype(dtype),
        biases.astype(dtype),
        group_size,
        bits,
    )
    return ExpertWeights(packed, X)


def experts_of(counts: Sequence[int]) -> mx.array:
    """[R] ascending: so many rows of each expert."""
    return mx.array(np.repeat(np.arange(len(counts)), counts).astype(np.int32))


def by_expert(x: Array, experts: Integers, plain: Array) -> Array:
    """[R, out] of rows [R, in] and weights [X, out, in]."""
    return np.stack([plain[expert] @ row for row, expert in zip(x, experts, strict=True)])


def grouped_mistakes(x: Array, experts: Integers, plain: Array) -> Mistakes:
    """Of a product [R, out] with the weights of many experts."""
    X, N, K = plain.shape
    alternating = plain.reshape(N, X, K).swapaxes(0, 1)
    first_of_eight = np.arange(len(x)) - np.searchsorted(experts, experts)
    by_turn = np.unique(experts, return_inverse=True)[1].reshape(-1)
    right = by_expert(x, experts, plain)
    return {
        "the weights of the first expert for all": lambda: x @ plain[0].T,
        "the weights of the expert before": lambda: by_expert(x, experts - 1, plain),
        "the weights of the expert after": lambda: by_expert(x, (experts + 1) % X, plain),
        "weights of which every X-th row is one expert's: the rows of an expert lie together": lambda: (
            by_expert(x, experts, alternating)
        ),
        "the weights by the number of the group, where some experts have no rows": lambda: by_expert(
            x, by_turn, plain
        ),
        "nothing for the first expert: they count from 0": lambda: np.where(
            (experts == 0)[:, None], 0, right
        ),
        "the first row of each expert for all of its rows": lambda: right[np.searchsorted(experts, experts)],
        "nothing after the first 8 rows of an expert": lambda: np.where(
            (first_of_eight >= 8)[:, None], 0, right
        ),
    }


GroupedMatmul = Callable[[mx.array, mx.array, ExpertWeights], mx.array]


def check_grouped(
    multiply: GroupedMatmul,
    counts: Sequence[int],
    N: int = 13,
    K: int = 96,
    bits: int = 4,
    group_size: int = 32,
    what: str = "",
) -> None:
    """Compare a product of so many rows per expert with that in numpy and float64."""
    __tracebackhide__ = True
    X, experts = len(counts), experts_of(counts)
    x, weights = normal(len(experts), K, seed=3), make_experts(X, N, K, bits, group_size)
    plain = expanded_by(weights.packed).reshape(X, N, K)
    poison(len(experts), N)
    check_close(
        multiply(x, experts, weights),
        by_expert(exact(x), np.array(experts), plain),
        what
        or f"rows per expert {list(counts)} times [{X}, {N}, {K}] of {bits} bits, groups of {group_size}",
        mistakes=grouped_mistakes(exact(x), np.array(experts), plain),
    )


COUNTS = [(3, 2, 4), (0, 2, 1, 0, 5, 0), (1,), (0, 0, 1), (1, 0, 8, 9, 30)]
every_count = pytest.mark.parametrize("counts", COUNTS)


def check_grouped_types(multiply: GroupedMatmul) -> None:
    """In the type that x and the scales have together."""
    __tracebackhide__ = True
    weights, experts = make_experts(3, 13, 64), experts_of([2, 0, 3])
    packed = weights.packed

    def of_types(x: mx.array, scales: mx.array) -> mx.array:
        biases = packed.biases.astype(scales.dtype)
        parts = QuantizedWeights(packed.weight, scales, biases, packed.group_size, packed.bits)
        return multiply(x, experts, ExpertWeights(parts, 3))

    def expected(x: Array, scales: Array) -> Array:
        parts = QuantizedWeights(
            packed.weight, mx.array(scales.astype(np.float32)), packed.biases, packed.group_size, packed.bits
        )
        return by_expert(x, np.array(experts), expanded_by(parts).reshape(3, 13, 64))

    operands = {"x": normal(5, 64, seed=3), "scales": packed.scales}
    check_types(of_types, expected, "product", operands)


@every_count
def test_task_3_each_row_by_its_expert(counts: tuple[int, ...]) -> None:
    check_grouped(grouped_matmul_simple, counts)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_task_3_every_width(bits: int) -> None:
    check_grouped(grouped_matmul_simple, (2, 0, 3), bits=bits)


def test_task_3_as_many_outputs_as_inputs() -> None:
    check_grouped(grouped_matmul_simple, (2, 0, 3), N=32, K=32)


def test_task_3_type_of_the_product() -> None:
    check_grouped_types(grouped_matmul_simple)


@pytest.mark.parametrize("num_experts", [0, -2, 4])
def test_task_3_rows_that_cannot_be_divided_are_refused(num_experts: int) -> None:
    packed = make_experts(3, 5, 32).packed
    with check_value_error(num_experts=num_experts):
        ExpertWeights(packed, num_experts)


E, HIDDEN, X = 17, 11, 7
Weights = dict[str, mx.array]


def moe_weights(dtype: mx.Dtype = mx.float32) -> Weights:
    """The router's [X, E], and for each expert gate and up [HIDDEN, E] and down [E, HIDDEN]."""
    shapes = {"router": (X, E), "gate": (X, HIDDEN, E), "up": (X, HIDDEN, E), "down": (X, E, HIDDEN)}
    return {name: (0.5 * normal(*shapes[name], seed=60 + i)).astype(dtype) for i, name in enumerate(shapes)}


class Experts:
    """A projection of each row by its expert, which checks and keeps what it is given."""

    def __init__(self, name: str, weight: mx.array) -> None:
        self.name, self.weight = name, weight
        self.outputs: list[mx.array] = []
        self.experts: list[mx.array] = []

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        check_equal(x.shape, (experts.size, self.weight.shape[2]), f"shape of the rows given to {self.name}")
        ascending = sorted(experts.tolist())
        check_equal(experts.tolist(), ascending, f"experts given to {self.name}, in ascending order")
        output = (self.weight[experts] @ x[..., None])[..., 0]
        self.experts.append(experts)
        self.outputs.append(output)
        return output


def make_moe(
    k: int = 3, is_normalized: bool = True, weights: Weights | None = None, **parts: Any
) -> SparseMoe:
    given = weights or moe_weights()
    experts = {name: Experts(name, given[name]) for name in ("gate", "up", "down")}
    router = partial(linear, w=given["router"])
    return SparseMoe(**{"router": router, **experts, **parts}, num_chosen=k, is_normalized=is_normalized)


class MoeByFormula:
    """The mixture in numpy and float64, token by token."""

    def __init__(self, x: mx.array, k: int, is_normalized: bool, weights: Weights) -> None:
        self.w = {name: exact(weight) for name, weight in weights.items()}
        self.shape = x.shape
        self.tokens = exact(x).reshape(-1, x.shape[-1])
        logits = self.tokens @ self.w["router"].T
        self.chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
        self.probabilities = softmax(logits)
        self.is_normalized = is_normalized

    def each(self, gate: str = "gate", up: str = "up") -> Array:
        """[T, k, E], the outputs of each token's experts."""
        return np.stack(
            [
                [
                    self.w["down"][e] @ (silu(self.w[gate][e] @ token) * (self.w[up][e] @ token))
                    for e in experts
                ]
                for token, experts in zip(self.tokens, self.chosen, strict=True)
            ]
        )

    def output(self, each: Array | None = None, is_normalized: bool | None = None) -> Array:
        weights = chosen_weights(
            self.probabilities, self.chosen, self.is_normalized if is_normalized is None else is_normalized
        )
        outputs = self.each() if each is None else each
        return (outputs * weights[..., None]).sum(axis=1).reshape(self.shape)

    def mistakes(self) -> Mistakes:
        each = self.each()
        T, k, width = each.shape
        order = np.argsort(self.chosen.reshape(-1), kind="stable")
        return {
            "the rows as they were sorted: put them back in the order of the tokens": lambda: self.output(
                each.reshape(T * k, width)[order].reshape(T, k, width)
            ),
            "the sum of the outputs without the weights": lambda: each.sum(axis=1).reshape(self.shape),
            "the mean of the outputs": lambda: each.mean(axis=1).reshape(self.shape),
            "the output of the likeliest expert alone": lambda: self.output(
                each * (np.arange(k) == 0)[:, None]
            ),
            "gate and up swapped": lambda: self.output(self.each("up", "gate")),
            "weights that are normalized where they should not be, or the other way round": lambda: (
                self.output(is_normalized=not self.is_normalized)
            ),
        }


def check_moe(
    x: mx.array, k: int, is_normalized: bool, dtype: mx.Dtype = mx.float32, tolerance: float = 1e-5
) -> None:
    __tracebackhide__ = True
    weights = moe_weights(dtype)
    right = MoeByFormula(x, k, is_normalized, weights)
    actual = make_moe(k, is_normalized, weights)(x)
    what = f"mixture of {k} of {X} experts for x {x.shape}"
    check_close(actual, right.output(), what, tolerance, right.mistakes())
    check_equal(actual.dtype, x.dtype, f"type of the {what}")


@normalized_or_not
@pytest.mark.parametrize("k", [3, 1, X])
@pytest.mark.parametrize("shape", [(2, 7), (1, 1), (3, 1), (1, 41)], ids=str)
def test_task_3_mixture(shape: tuple[int, int], k: int, is_normalized: bool) -> None:
    check_moe(normal(*shape, E, seed=70), k, is_normalized)


def test_task_3_experts_that_no_token_chose() -> None:
    x = mx.broadcast_to(normal(1, 1, E, seed=71), (2, 5, E))
    check_moe(x, 2, True)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_3_mixture_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    weights = moe_weights(dtype)
    x = normal(1, 1, E, seed=72, dtype=dtype)
    check_moe(x, 3, True, dtype, 4 * tolerance)
    output = make_moe(3, False, weights)(normal(2, 7, E, seed=73, dtype=dtype))
    check_equal(output.dtype, dtype, "type of the mixture")


@normalized_or_not
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_3_outputs_are_added_up_in_float32(dtype: mx.Dtype, is_normalized: bool) -> None:
    weights, x = moe_weights(dtype), normal(1, 53, E, seed=74, dtype=dtype)
    down = Experts("down", weights["down"])
    logits = linear(x[0], weights["router"])
    actual = make_moe(5, is_normalized, weights, down=down)(x)
    chosen = likeliest(logits, 5)
    places = np.argsort(np.argsort(chosen.reshape(-1), kind="stable"), kind="stable").reshape(chosen.shape)
    outputs = exact(down.outputs[0])[places]

    def weighed(logits: Array) -> Array:
        shares = chosen_weights(softmax(logits), chosen, is_normalized)
        return (outputs * shares[..., None]).sum(axis=1)[None]

    mistakes = {
        "the sum with weights of a router that got x in float32: give it x as it is": weighed(
            exact(x[0]) @ exact(weights["router"]).T
        )
    }
    check_rounded_once(
        actual, weighed(exact(logits)), f"sum of the experts' outputs in {dtype}", mistakes=mistakes
    )


def test_task_3_each_part_is_called_once() -> None:
    weights = moe_weights()
    parts = {name: Counted(Experts(name, weights[name])) for name in ("gate", "up", "down")}
    parts["router"] = Counted(partial(linear, w=weights["router"]))
    make_moe(**parts)(normal(2, 5, E, seed=75))
    check_calls(parts, 1, "in a mixture")


def test_task_3_each_token_is_given_to_k_experts() -> None:
    gate = Experts("gate", moe_weights()["gate"])
    make_moe(3, gate=gate)(normal(2, 5, E, seed=76))
    check_equal(gate.experts[0].size, 30, "rows of 10 tokens with 3 experts each")


def test_task_3_other_tokens_do_not_matter() -> None:
    x = normal(3, 19, E, seed=77)
    together = make_moe()(x)
    for b, i in ((0, 0), (1, 7), (2, 18)):
        alone = make_moe()(x[b : b + 1, i : i + 1])
        check_close(alone[0, 0], together[b, i], f"token {i} of row {b} alone, and among others")


# --- task 4: load it ----------------------------------------------------------------------------------------


def variant(name: str) -> Variant:
    return next(each for each in MOE_VARIANTS if each.name == name)


def read(**changes: Any) -> MoeConfig:
    """MoeConfig of a config.json with these changes; a change to ... takes the key out."""
    config = {**variant("moe").config, **changes}
    return MoeConfig.from_dict({key: value for key, value in config.items() if value is not ...})


def test_task_4_sizes_and_switches() -> None:
    config = read(decoder_sparse_step=2, mlp_only_layers=[5, 3])
    check_equal(dataclasses.astuple(config), (11, 3, 96, True, 2, (5, 3)), "fields of MoeConfig")


@pytest.mark.parametrize("value", [..., None], ids=["missing", "null"])
@pytest.mark.parametrize(
    ("key", "field", "default"),
    [
        ("norm_topk_prob", "is_normalized", False),
        ("decoder_sparse_step", "sparse_step", 1),
        ("mlp_only_layers", "dense_layers", ()),
    ],
)
def test_task_4_what_a_missing_value_means(key: str, field: str, default: Any, value: Any) -> None:
    check_equal(getattr(read(**{key: value}), field), default, f"MoeConfig.{field} where {key} is missing")


@pytest.mark.parametrize("is_normalized", [False, True])
def test_task_4_normalized_as_the_file_says(is_normalized: bool) -> None:
    check_equal(read(norm_topk_prob=is_normalized).is_normalized, is_normalized, "MoeConfig.is_normalized")


@pytest.mark.parametrize("value", [..., None], ids=["missing", "null"])
@pytest.mark.parametrize("key", ["num_experts", "num_experts_per_tok", "moe_intermediate_size"])
def test_task_4_a_value_missing_is_named(key: str, value: Any) -> None:
    with check_value_error(key=key):
        read(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_experts", 0),
        ("num_experts", "8"),
        ("num_experts_per_tok", 2.0),
        ("moe_intermediate_size", -1),
        ("decoder_sparse_step", 0),
        ("norm_topk_prob", "yes"),
        ("mlp_only_layers", 1),
        ("mlp_only_layers", [-1]),
    ],
    ids=str,
)
def test_task_4_a_value_of_the_wrong_kind_is_refused(key: str, value: Any) -> None:
    with check_value_error(key=key, what=f"a config.json whose {key} is {value!r}"):
        read(**{key: value})


@pytest.mark.parametrize("value", [..., None], ids=["missing", "null"])
def test_task_4_the_number_of_experts_in_newer_files(value: Any) -> None:
    check_equal(read(num_experts=value, num_local_experts=11).num_experts, 11, "MoeConfig.num_experts")
    with check_value_error(key="num_local_experts"):
        read(num_experts=value, num_local_experts=0)


@pytest.mark.parametrize("num_chosen", [12, 50])
def test_task_4_more_experts_than_there_are(num_chosen: int) -> None:
    with check_value_error(num_experts=11, num_experts_per_tok=num_chosen):
        read(num_experts_per_tok=num_chosen)


def test_task_4_all_experts_may_be_chosen() -> None:
    check_equal(read(num_experts_per_tok=11).num_chosen, 11, "MoeConfig.num_chosen")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"mlp_only_layers": [0, 4]}, [1, 2, 3, 5, 6]),
        ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"decoder_sparse_step": 3}, [2, 5]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]}, [1, 5]),
        ({"decoder_sparse_step": 9}, []),
    ],
    ids=str,
)
def test_task_4_layers_with_experts(changes: dict[str, Any], expected: list[int]) -> None:
    config = read(**changes)
    check_equal([i for i in range(7) if config.is_sparse(i)], expected, f"layers with experts of {changes}")


PARTS = ("weight", "scales", "biases")


def by_experts(tensors: Weights) -> Weights:
    """The same tensors in Qwen's layout: a matrix for each expert, in an order of their names as text."""
    split = {}
    for name, tensor in tensors.items():
        if ".switch_mlp." in name:
            names = {f"{name.replace('switch_mlp', f'experts.{i}')}": each for i, each in enumerate(tensor)}
            split.update(names)
        else:
            split[name] = tensor
    return dict(sorted(split.items()))


def small_tensors() -> Weights:
    """Of a layer with 12 experts, in mlx-lm's layout."""
    name = "model.layers.1.mlp.switch_mlp"
    tensors = {f"{name}.up_proj.{part}": normal(12, 5, 3, seed=80 + i) for i, part in enumerate(PARTS)}
    tensors[f"{name}.down_proj.weight"] = normal(12, 3, 5, seed=83)
    others = ("model.layers.1.mlp.gate.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight")
    return tensors | {name: normal(4, 3, seed=84 + i) for i, name in enumerate(others)}


@pytest.mark.parametrize("layout", ["mlx-lm's", "Qwen's"])
def test_task_4_weights_below_each_other(layout: str) -> None:
    tensors = small_tensors()
    actual = flatten_experts(tensors if layout == "mlx-lm's" else by_experts(tensors))
    check_equal(sorted(actual), sorted(tensors), f"names of the tensors in {layout} layout")
    for name, tensor in tensors.items():
        expected = exact(tensor).reshape(-1, tensor.shape[-1])
        mistakes = {}
        if tensor.ndim == 3:
            by_text = [int(i) for i in sorted(map(str, range(12)))]
            mistakes = {
                "the experts in the order of the alphabet, 10 before 2": exact(tensor)[by_text].reshape(
                    expected.shape
                )
            }
        check_close(actual[name], expected, f"{name} in {layout} layout", 0, mistakes)


def test_task_4_the_dict_given_stays_whole() -> None:
    for tensors in (small_tensors(), by_experts(small_tensors())):
        names = list(tensors)
        flatten_experts(tensors)
        check_equal(list(tensors), names, "names in the dict after flatten_experts")


def check_logits(model: Qwen3Model, oracle: Any, what: str, tolerance: float = 1e-4) -> None:
    __tracebackhide__ = True
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(80))
    with mx.stream(mx.cpu):
        expected = oracle(tokens)
    mistakes = {} if isinstance(oracle, Qwen3Model) else loader_mistakes(oracle, tokens)
    check_close(model(tokens), expected, what, tolerance, mistakes)


NAMES = [each.name for each in MOE_VARIANTS]


@pytest.mark.parametrize("name", NAMES)
def test_task_4_a_loaded_model_equals_mlx_lm(name: str, tmp_path: Path) -> None:
    oracle = build(variant(name))
    if variant(name).dtype != mx.float32:
        oracle.set_dtype(mx.float32)  # rounded all the same
    folder = save(variant(name), build(variant(name)), tmp_path)
    check_logits(load_moe_model(folder, mx.float32), oracle, f"logits of {name}")


def save_by_experts(name: str, folder: Path) -> Path:
    """A checkpoint as Qwen publishes it."""
    save(variant(name), build(variant(name)), folder)
    change_tensors(folder, by_experts)
    return folder


def change_tensors(folder: Path, change: Callable[[Weights], Weights]) -> None:
    weights = change(mx.load(str(folder / "model.safetensors")))
    mx.eval(weights)
    mx.save_safetensors(str(folder / "changed.safetensors"), weights)
    (folder / "changed.safetensors").replace(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["moe", "moe-dense-layer", "moe-4bit"])
def test_task_4_a_matrix_for_each_expert(name: str, tmp_path: Path) -> None:
    model = load_moe_model(save_by_experts(name, tmp_path), mx.float32)
    check_logits(model, build(variant(name)), f"logits of {name} in Qwen's layout")


def test_task_4_packed_weights_of_experts_stay_packed(tmp_path: Path) -> None:
    multiply = Counted(grouped_matmul_simple)
    folder = save(variant("moe-8bit"), build(variant("moe-8bit")), tmp_path)
    model = load_moe_model(folder, operations=Operations(grouped_matmul=multiply))
    check_logits(model, build(variant("moe-8bit")), "logits with a grouped matmul from outside")
    check_equal(multiply.num_calls, 9, "calls of the grouped matmul for 3 layers of 3 projections")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["moe", "moe-4bit"])
def test_task_4_computes_in_the_type_asked_for(name: str, dtype: mx.Dtype, tmp_path: Path) -> None:
    model = load_moe_model(save(variant(name), build(variant(name)), tmp_path), dtype)
    check_equal(model(mx.array([[1, 2]])).dtype, dtype, "type of the logits")


def without(name: str, tensors: Weights) -> Weights:
    return {each: tensor for each, tensor in tensors.items() if each != name}


def without_expert(tensors: Weights) -> Weights:
    start = "model.layers.1.mlp.experts.4.up_proj."
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(start)}


def test_task_4_an_expert_that_is_missing_is_refused(tmp_path: Path) -> None:
    folder = save_by_experts("moe-4bit", tmp_path)
    change_tensors(folder, without_expert)
    with check_value_error(name="model.layers.1.mlp.switch_mlp.up_proj"):
        load_moe_model(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.gate.weight", "model.layers.2.mlp.switch_mlp.down_proj.weight"]
)
def test_task_4_a_tensor_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    folder = save(variant("moe"), build(variant("moe")), tmp_path)
    change_tensors(folder, partial(without, name))
    with check_value_error(name=name):
        load_moe_model(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.mlp.gate.bias", "other"]
)
def test_task_4_a_tensor_left_over_is_refused(name: str, tmp_path: Path) -> None:
    folder = save(variant("moe"), build(variant("moe")), tmp_path)
    change_tensors(folder, lambda tensors: tensors | {name: normal(11, seed=88)})
    with check_value_error(name=name):
        load_moe_model(folder)


@pytest.mark.parametrize(
    "changes", [{"num_experts": 10}, {"moe_intermediate_size": 64}, {"mlp_only_layers": [1]}], ids=str
)
def test_task_4_a_config_that_does_not_fit_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = save(variant("moe-4bit"), build(variant("moe-4bit")), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with check_value_error(name="model.layers."):
        load_moe_model(folder)


def test_task_4_layers_without_experts_have_the_mlp_of_the_operations() -> None:
    made = []

    def note(*arguments: Any) -> Qwen3MLP:
        made.append(arguments[:2])
        return Qwen3MLP(*arguments)

    chosen = variant("moe-every-second")
    weights = flatten_experts(dict(tree_flatten(build(chosen).parameters())))
    tensors = Tensors(weights, operations=Operations(mlp=note))
    config = ModelConfig.from_dict({**chosen.config, "model_type": "qwen3"})
    moe = MoeConfig.from_dict(chosen.config)
    parts = [build_moe(moe, config, tensors, f"model.layers.{i}.mlp") for i in range(3)]
    check_equal([isinstance(part, SparseMoe) for part in parts], [False, True, False], "layers with experts")
    check_equal(made, [(128, 256)] * 2, "widths of the MLPs of layers without experts")


def test_task_4_layers_beyond_the_tenth() -> None:
    chosen = variant("moe")
    weights = flatten_experts(dict(tree_flatten(build(chosen).parameters())))
    far = {name.replace("layers.1.", "layers.13."): each for name, each in weights.items()}
    config = ModelConfig.from_dict({**chosen.config, "model_type": "qwen3"})
    for dense, expected in (([3, 1], SparseMoe), ([13], Qwen3MLP)):
        moe = MoeConfig.from_dict({**chosen.config, "mlp_only_layers": dense})
        tensors = Tensors({**far, **dense_mlp("model.layers.13.mlp")})
        part = build_moe(moe, config, tensors, "model.layers.13.mlp")
        what = f"kind of layer 13, where layers {dense} have an MLP"
        check_equal(type(part).__name__, expected.__name__, what)


def dense_mlp(name: str) -> dict[str, mx.array]:
    """The weights of an MLP of 128 inputs and 256 hidden units."""
    shapes = {"gate_proj": (256, 128), "up_proj": (256, 128), "down_proj": (128, 256)}
    return {f"{name}.{projection}.weight": mx.zeros(shape) for projection, shape in shapes.items()}


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_task_4_experts_taken(bits: int | None) -> None:
    weight, x = normal(5, 7, 64, seed=89), normal(6, 64, seed=90)
    experts = experts_of([2, 0, 3, 0, 1])
    tensors, plain = {"up.weight": weight.reshape(35, 64)}, weight
    if bits is not None:
        packed = mx.quantize(weight.reshape(35, 64), group_size=32, bits=bits)
        tensors = {f"up.{part}": each for part, each in zip(PARTS, packed, strict=True)}
        plain = mx.dequantize(*packed, group_size=32, bits=bits).reshape(5, 7, 64)
    source = Tensors(tensors, Quantization({"group_size": 32, "bits": bits}) if bits else None)
    projection = take_experts(source, "up", 5, 7, 64)
    source.check_all_used(is_tied=False)
    check_close(
        projection(x, experts),
        by_expert(exact(x), np.array(experts), exact(plain)),
        f"rows by their experts' weights of {bits or 32} bits",
        mistakes=grouped_mistakes(exact(x), np.array(experts), exact(plain)),
    )


# --- task 5: one product for all experts --------------------------------------------------------------------

LAYOUTS = [(bits, group_size) for bits in (4, 8) for group_size in (32, 64, 128)]
every_layout = pytest.mark.parametrize(("bits", "group_size"), LAYOUTS)


@every_layout
def test_task_5_every_layout(bits: int, group_size: int) -> None:
    check_grouped(grouped_matmul_cpu, (2, 0, 9, 1), 53, 384, bits, group_size)


@every_count
@pytest.mark.parametrize("bits", [4, 8])
def test_task_5_any_number_of_rows(counts: tuple[int, ...], bits: int) -> None:
    check_grouped(grouped_matmul_cpu, counts, bits=bits)


def test_task_5_every_number_of_rows() -> None:
    check_grouped(grouped_matmul_cpu, range(20))
    check_grouped(grouped_matmul_cpu, range(20)[::-1])


@pytest.mark.parametrize("N", [1, 47, 48, 49, 96, 131])
def test_task_5_columns_that_fill_no_part(N: int) -> None:
    check_grouped(grouped_matmul_cpu, (3, 0, 11), N)


def test_task_5_many_experts() -> None:
    check_grouped(grouped_matmul_cpu, [*([0, 1, 0, 0, 2] * 20), 9], 19, 64)


def test_task_5_threads_do_not_matter() -> None:
    experts, weights = experts_of([1, 0, 8, 9, 30] * 4), make_experts(20, 331, 256)
    x = normal(experts.size, 256, seed=3)
    check_threads(lambda: grouped_matmul_cpu(x, experts, weights), "product of 192 rows with 20 experts")
    with threads(4):
        check_grouped(grouped_matmul_cpu, (3, 0, 11), 331, what="product with 4 threads")


def test_task_5_nothing_behind_an_array_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GROUPED_MATMUL", FencedKernel(dispatch.GROUPED_MATMUL))
    for bits, group_size in ((4, 32), (8, 64)):
        for counts, N in (((0, 1), 1), ((1, 0, 10), 49)):
            check_grouped(grouped_matmul_cpu, counts, N, 128, bits, group_size)


@on_every_target
def test_task_5_other_processors(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for(target, dispatch.GROUPED_MATMUL, monkeypatch)
    monkeypatch.setattr(dispatch, "GROUPED_MATMUL", kernel)
    for bits in (4, 8):
        check_grouped(grouped_matmul_cpu, (1, 0, 9), 53, 384, bits, 64, f"product of {bits} bits on {target}")


def test_task_5_arrays_that_are_not_contiguous() -> None:
    experts, weights = experts_of([2, 0, 3]), make_experts(3, 13, 64)
    x, packed = normal(5, 64, seed=3), weights.packed
    parts = (spread(each) for each in (packed.weight, packed.scales, packed.biases))
    strided = ExpertWeights(QuantizedWeights(*parts, packed.group_size, packed.bits), 3)
    expected = by_expert(exact(x), np.array(experts), expanded_by(packed).reshape(3, 13, 64))
    check_close(
        grouped_matmul_cpu(spread(x), spread(experts), strided), expected, "product of strided arrays"
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("K", [64, 576])
def test_task_5_bits_of_a_row_do_not_depend_on_others(bits: int, K: int) -> None:
    counts, weights = (1, 0, 8, 9, 30), make_experts(5, 53, K, bits)
    experts = experts_of(counts)
    x = normal(experts.size, K, seed=3)
    expected = grouped_matmul_cpu(x, experts, weights)
    for row in (0, 1, 8, 9, 17, 18, 40, 47):
        one = slice(row, row + 1)
        alone = grouped_matmul_cpu(x[one], experts[one], weights)
        check_bits(alone, expected[one], f"row {row} of expert {experts[row].item()} alone")
    for size in (2, 5, 8, 19):
        parts = [
            grouped_matmul_cpu(x[i : i + size], experts[i : i + size], weights)
            for i in range(0, experts.size, size)
        ]
        check_bits(mx.concatenate(parts), expected, f"{size} rows at a time")


def test_task_5_type_of_the_product() -> None:
    check_grouped_types(grouped_matmul_cpu)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_5_sums_are_float32(dtype: mx.Dtype) -> None:
    experts, weights = experts_of([2, 0, 11]), make_experts(3, 13, 640, dtype=dtype)
    x = normal(13, 640, seed=3, dtype=dtype)
    expected = by_expert(exact(x), np.array(experts), expanded_by(weights.packed).reshape(3, 13, 640))
    check_rounded_once(grouped_matmul_cpu(x, experts, weights), expected, f"product in {dtype}")


@every_layout
def test_task_5_the_kernel_of_mlx(bits: int, group_size: int) -> None:
    check_grouped(grouped_matmul_mlx, (2, 0, 9, 1), 53, 384, bits, group_size)


def test_task_5_type_of_the_product_of_mlx() -> None:
    check_grouped_types(grouped_matmul_mlx)


WAYS = ("grouped_matmul_cpu", "grouped_matmul_mlx", "grouped_matmul_simple")


def check_way(device: mx.DeviceType, bits: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which function multiplies for that device and width."""
    __tracebackhide__ = True
    used: list[str] = []
    result = normal(5, 13, seed=4)

    def put_in_place(name: str) -> None:
        def note(*arguments: Any) -> mx.array:
            used.append(name)
            return result

        monkeypatch.setattr(dispatch, name, note, raising=False)

    for name in WAYS:
        put_in_place(name)
    use_device(device, monkeypatch)
    actual = dispatch_grouped_matmul(
        normal(5, 96, seed=3), experts_of([2, 0, 3]), make_experts(3, 13, 96, bits)
    )
    check_equal(used, [expected], f"functions called on the {device} for {bits} bits")
    check_equal(actual is result, True, "whether what it returned comes out")


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_task_5_mlx_on_a_gpu(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(mx.gpu, bits, "grouped_matmul_mlx", monkeypatch)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_task_5_the_kernel_on_a_cpu(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "grouped_matmul_cpu" if bits in (4, 8) else "grouped_matmul_simple"
    check_way(mx.cpu, bits, expected, monkeypatch)


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_task_5_every_width_is_multiplied(bits: int) -> None:
    check_grouped(dispatch_grouped_matmul, (2, 0, 9), bits=bits)
