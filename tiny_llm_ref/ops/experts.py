"""Mixture of experts: which experts compute a token, and the products with the weights of many experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from .quantize import QuantizedWeights, dequantize_weights


def route(logits: mx.array, num_chosen: int, is_normalized: bool) -> tuple[mx.array, mx.array]:
    """Choose the experts of each token by the router's logits, and weigh them.

    The weights are the experts' probabilities, of a softmax over all experts in float32.

    Args:
        logits: [T, X], one per expert.
        num_chosen: k, the number of experts per token, at most X.
        is_normalized: whether to divide the k weights of a token by their sum.

    Returns:
        experts: [T, k] int32, the likeliest first; of equal ones, the one with the smaller number.
        weights: [T, k] float32

    Source: Switch Transformers, arXiv:2101.03961, section 2.1; for k > 1, arXiv:1701.06538.
    """
    probabilities = mx.softmax(logits.astype(mx.float32), axis=-1)
    experts = mx.argsort(-probabilities, axis=-1)[:, :num_chosen]
    weights = mx.take_along_axis(probabilities, experts, axis=-1)
    if is_normalized:
        weights = weights / mx.sum(weights, axis=-1, keepdims=True)
    return experts.astype(mx.int32), weights


class Grouping(NamedTuple):
    """The rows of a batch in the order of their experts. A token has a row for each of its k experts.

    Attributes:
        tokens: [R] with R = T x k, the token of each row.
        experts: [R], the expert of each row; they don't fall.
        places: [T, k], the row of each token and expert.
    """

    tokens: mx.array
    experts: mx.array
    places: mx.array


def expected_num_experts(num_experts: int, num_chosen: int, num_tokens: int) -> float:
    """Number of experts that a step reads, if every token chooses its experts at random, all equally likely.

    One token leaves out an expert with probability 1 - k / X, and all tokens do with its T-th power.

    Args:
        num_experts, num_chosen: X and k.
        num_tokens: T
    """
    return num_experts * (1 - (1 - num_chosen / num_experts) ** num_tokens)


def group_by_expert(experts: mx.array) -> Grouping:
    """Sort the rows by expert, so that each expert's rows lie side by side; in each, the first token first.

    Args:
        experts: [T, k], as `route` returns them.
    """
    T, k = experts.shape
    flat = experts.reshape(-1)
    order = mx.argsort(flat * (T * k) + mx.arange(T * k))  # no two are equal, so the order is determined
    places = mx.zeros_like(order)
    places[order] = mx.arange(T * k, dtype=order.dtype)
    return Grouping(order // k, flat[order], places.reshape(T, k))


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """The weights [X, out, in] of one projection of all experts, packed like `QuantizedWeights`.

    Args:
        packed: the weights of all experts below each other, of shape (X x out, in).
        num_experts: X

    Raises:
        ValueError: the rows of `packed` cannot be divided among `num_experts`.
    """

    packed: QuantizedWeights
    num_experts: int

    def __post_init__(self) -> None:
        num_rows = self.packed.shape[0]
        if self.num_experts < 1 or num_rows % self.num_experts:
            raise ValueError(f"num_experts must divide the {num_rows} rows of packed, got {self.num_experts}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, out, in)"""
        num_rows, num_inputs = self.packed.shape
        return self.num_experts, num_rows // self.num_experts, num_inputs


ExpertProjection = Callable[[mx.array, mx.array], mx.array]
"""Multiplies each row `[R, in]` by the weights of its expert `[R]`, to give `[R, out]`."""
GroupedMatmul = Callable[[mx.array, mx.array, ExpertWeights], mx.array]
"""Multiplies each row of x `[R, in]` by its expert's weights, to give `[R, out]`."""


def grouped_matmul_simple(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
    """Multiply each row by the weights of its expert: all rows by each expert, and keep those it has.

    Args:
        x: [R, in]
        experts: [R], the expert of each row; they don't fall.
        weights: of shape (X, out, in).

    Returns:
        [R, out], in the promoted type of x and the scales.
    """
    plain = dequantize_weights(weights.packed).reshape(weights.shape)
    product = mx.zeros((x.shape[0], weights.shape[1]), mx.result_type(x, plain))
    for number in range(weights.num_experts):
        product = mx.where((experts == number)[:, None], x @ plain[number].T, product)
    return product
