"""Week 1 day 4: RMSNorm, SiLU and the SwiGLU MLP."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.counting import Counted, check_calls
from tests.support.oracles import (
    LOW_PRECISION,
    Array,
    Mistakes,
    exact,
    mlp_mistakes,
    rms_norm,
    rms_norm_mistakes,
    silu_mistakes,
)
from tests.support.oracles import silu as exact_silu
from tests.support.precision import FLOATS, check_rounded_once, check_types, short_types
from tiny_llm import Qwen3MLP, RMSNorm, silu

# --- task 1 ------------------------------------------------------------------------------------------------

EPS = 1e-5


def norm_weight(dim: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return (1 + 0.3 * normal(dim, seed=1)).astype(dtype)


def norm_mistakes(x: mx.array, weight: mx.array, eps: float = EPS) -> Mistakes:
    return rms_norm_mistakes(exact(x), exact(weight), eps)


@pytest.mark.parametrize("eps", [0.5, 1e-2, 1e-6])
def test_task_1_eps_stands_under_the_root(eps: float) -> None:
    x, weight = 0.1 * normal(3, 7, seed=6), norm_weight(7)
    actual = RMSNorm(7, weight, eps)(x)
    expected = rms_norm(exact(x), exact(weight), eps)
    mistakes = norm_mistakes(x, weight, eps)
    check_close(actual, expected, f"small x normalized with {eps=}", mistakes=mistakes)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 3, 5, 7), (1, 1, 7)], ids=str)
def test_task_1_each_vector_is_divided_by_its_root_mean_square(shape: tuple[int, ...]) -> None:
    x, weight = 3 * normal(*shape, seed=2), norm_weight(7)
    expected = rms_norm(exact(x), exact(weight), EPS)
    check_close(RMSNorm(7, weight, EPS)(x), expected, "normalized x", mistakes=norm_mistakes(x, weight))


def test_task_1_the_last_axis_is_normalized() -> None:
    x, weight = normal(5, 5, 5, seed=3), norm_weight(5)
    expected = rms_norm(exact(x), exact(weight), EPS)
    check_close(RMSNorm(5, weight, EPS)(x), expected, "normalized cube", mistakes=norm_mistakes(x, weight))


def test_task_1_equals_mlx() -> None:
    x, weight = normal(2, 3, 7, seed=4), norm_weight(7)
    with mx.stream(mx.cpu):
        expected = mx.fast.rms_norm(x, weight, EPS)
    check_close(RMSNorm(7, weight, EPS)(x), expected, "normalized x")


def test_task_1_the_mean_is_not_taken_off() -> None:
    x, weight = normal(3, 7, seed=5) + 10, norm_weight(7)
    expected = rms_norm(exact(x), exact(weight), EPS)
    mistakes = norm_mistakes(x, weight)
    check_close(RMSNorm(7, weight, EPS)(x), expected, "normalized x around 10", mistakes=mistakes)


def test_task_1_eps_is_1e_5_unless_given() -> None:
    x, weight = 3e-3 * normal(3, 7, seed=7), norm_weight(7)
    expected = rms_norm(exact(x), exact(weight), 1e-5)
    check_close(RMSNorm(7, weight)(x), expected, "small x normalized", mistakes=norm_mistakes(x, weight))


def test_task_1_a_vector_of_zeros_stays_finite() -> None:
    check_close(RMSNorm(7, norm_weight(7))(mx.zeros((2, 7))), np.zeros((2, 7)), "normalized zeros")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_1_type_is_kept(dtype: mx.Dtype, tolerance: float) -> None:
    x, weight = normal(3, 67, seed=8, dtype=dtype), norm_weight(67, dtype)
    actual = RMSNorm(67, weight, EPS)(x)
    check_equal(actual.dtype, dtype, "type of the normalized x")
    check_close(actual, rms_norm(exact(x), exact(weight), EPS), "normalized x", tolerance)


def test_task_1_the_type_is_that_of_x_whatever_the_weight_has() -> None:
    check_types(
        lambda x, weight: RMSNorm(67, weight, EPS)(x),
        lambda x, weight: rms_norm(x, weight, EPS),
        "normalized x",
        {"x": normal(3, 67, seed=8), "weight": norm_weight(67)},
        keeps="x",
    )


@short_types
@pytest.mark.parametrize("weight_type", FLOATS, ids=str)
def test_task_1_the_normalized_x_is_rounded_once(dtype: mx.Dtype, weight_type: mx.Dtype) -> None:
    x, weight = normal(30, 67, seed=8, dtype=dtype), norm_weight(67, weight_type)
    expected = rms_norm(exact(x), exact(weight), EPS)
    check_rounded_once(RMSNorm(67, weight, EPS)(x), expected, f"normalized {dtype} x, weight {weight_type}")


@pytest.mark.parametrize("factor", [1000, 3e-4])
def test_task_1_squares_are_taken_in_float32(factor: float) -> None:
    """The square of 300 is more than float16 holds, that of 0.0001 less."""
    x, weight = (factor * normal(3, 67, seed=9)).astype(mx.float16), norm_weight(67, mx.float16)
    actual = RMSNorm(67, weight, 1e-9)(x)
    expected = rms_norm(exact(x), exact(weight), 1e-9)
    mistakes = {"x normalized with squares in float16": lambda: squared_in_float16(exact(x), exact(weight))}
    check_close(actual, expected, f"normalized float16 values around {factor}", 3e-3, mistakes)


def squared_in_float16(x: Array, weight: Array) -> Array:
    with np.errstate(over="ignore"):
        squares = x.astype(np.float16) ** 2
    return x / np.sqrt(squares.astype(np.float64).mean(axis=-1, keepdims=True) + 1e-9) * weight


def test_task_1_the_mean_of_a_long_vector_is_taken_in_float32() -> None:
    x, weight = 2 * normal(3, 8191, seed=10, dtype=mx.bfloat16), norm_weight(8191, mx.bfloat16)
    expected = rms_norm(exact(x), exact(weight), EPS)
    check_close(RMSNorm(8191, weight, EPS)(x), expected, "normalized vectors of 8191 dimensions", 1e-2)


@pytest.mark.parametrize("shape", [(8,), (1,), (7, 1), (1, 7)], ids=str)
def test_task_1_a_weight_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with check_value_error(weight=shape):
        RMSNorm(7, normal(*shape, seed=11))


# --- task 2 ------------------------------------------------------------------------------------------------

E, HIDDEN = 7, 13


@pytest.mark.parametrize("shape", [(), (11,), (2, 3, 7)], ids=str)
def test_task_2_silu_is_x_times_its_sigmoid(shape: tuple[int, ...]) -> None:
    x = 3 * normal(*shape, seed=20)
    check_close(silu(x), exact_silu(exact(x)), "silu(x)", mistakes=silu_mistakes(exact(x)))


def test_task_2_silu_equals_mlx() -> None:
    x = 3 * normal(5, 11, seed=21)
    with mx.stream(mx.cpu):
        expected = nn.silu(x)
    check_close(silu(x), expected, "silu(x)")


def test_task_2_silu_of_large_values() -> None:
    x = mx.array([-3e38, -1e4, -100.5, 100.5, 1e4, 3e38])
    check_close(silu(x), np.array([0, 0, 0, 100.5, 1e4, 3e38]), "silu of values far from zero")
    x = mx.array([-30.0, -20.0, -12.5])
    check_close(silu(x), exact_silu(exact(x)), "silu of values where it is small and not zero")


@short_types
def test_task_2_silu_of_small_values_is_accurate_by_their_own_size(dtype: mx.Dtype) -> None:
    x = mx.linspace(-8, 2, 201).astype(dtype)
    expected = exact_silu(exact(x))
    check_rounded_once(silu(x), expected, f"silu of {dtype}, each entry by its size", most=6, smallest=0)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_silu_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    x = 3 * normal(5, 11, seed=22, dtype=dtype)
    check_equal(silu(x).dtype, dtype, "type of silu(x)")
    check_close(silu(x), exact_silu(exact(x)), "silu(x)", tolerance)


def mlp_weights(E: int = E, hidden: int = HIDDEN, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    """w_gate, w_up and w_down."""
    shapes = [(hidden, E), (hidden, E), (E, hidden)]
    return [normal(*shape, seed=30 + i, dtype=dtype) for i, shape in enumerate(shapes)]


def expected_mlp(x: mx.array, weights: list[mx.array]) -> Array:
    gate, up, down = map(exact, weights)
    return (exact_silu(exact(x) @ gate.T) * (exact(x) @ up.T)) @ down.T


@pytest.mark.parametrize("leading", [(2, 3), (1, 1), (5, 1)], ids=str)
def test_task_2_mlp_is_gated(leading: tuple[int, ...]) -> None:
    x = normal(*leading, E, seed=40)
    mistakes = mlp_mistakes(exact(x), *map(exact, mlp_weights()))
    actual = Qwen3MLP(E, HIDDEN, *mlp_weights())(x)
    check_close(actual, expected_mlp(x, mlp_weights()), "MLP of x", mistakes=mistakes)


def test_task_2_mlp_of_square_weights() -> None:
    x, weights = normal(2, 3, 5, seed=41), mlp_weights(5, 5)
    check_close(Qwen3MLP(5, 5, *weights)(x), expected_mlp(x, weights), "MLP of x with square weights")


def test_task_2_mlp_arguments_by_name() -> None:
    x, (w_gate, w_up, w_down) = normal(2, 3, E, seed=42), mlp_weights()
    mlp = Qwen3MLP(dim=E, hidden_dim=HIDDEN, w_down=w_down, w_up=w_up, w_gate=w_gate)
    check_close(mlp(x), expected_mlp(x, mlp_weights()), "MLP of x")


def as_callable(weight: mx.array) -> Callable[[mx.array], mx.array]:
    return lambda x: x @ weight.T


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)], ids=["gate", "up", "down", "all"])
def test_task_2_mlp_takes_projections(which: tuple[int, ...]) -> None:
    x, weights = normal(2, 3, E, seed=43), mlp_weights()
    parts = [as_callable(weight) if i in which else weight for i, weight in enumerate(weights)]
    check_close(Qwen3MLP(E, HIDDEN, *parts)(x), expected_mlp(x, weights), "MLP of x")


def test_task_2_mlp_calls_each_projection_once() -> None:
    names = ("gate", "up", "down")
    parts = {name: Counted(as_callable(w)) for name, w in zip(names, mlp_weights(), strict=True)}
    Qwen3MLP(E, HIDDEN, *parts.values())(normal(2, 3, E, seed=43))
    check_calls(parts, 1, "in one call of the MLP")


def test_task_2_mlp_with_biases_inside_its_projections() -> None:
    x, layers = normal(2, 3, E, seed=44), [nn.Linear(E, HIDDEN), nn.Linear(E, HIDDEN), nn.Linear(HIDDEN, E)]
    for i, (layer, weight) in enumerate(zip(layers, mlp_weights(), strict=True)):
        layer.weight, layer.bias = weight, normal(weight.shape[0], seed=50 + i)
    gate, up, down = layers
    with mx.stream(mx.cpu):
        expected = down(nn.silu(gate(x)) * up(x))
    check_close(Qwen3MLP(E, HIDDEN, *layers)(x), expected, "MLP of x with biases")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_mlp_keeps_the_type(dtype: mx.Dtype, tolerance: float) -> None:
    x, weights = normal(2, 3, E, seed=45, dtype=dtype), mlp_weights(dtype=dtype)
    actual = Qwen3MLP(E, HIDDEN, *weights)(x)
    check_equal(actual.dtype, dtype, "type of the MLP of x")
    check_close(actual, expected_mlp(x, weights), "MLP of x", 2 * tolerance)
