"""Mixture of experts: which experts compute a token, and the products with the weights of many experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from kernel_runtime.limits import check_integer
from kernel_runtime.shapes import shaped

from .quantize import QuantizedWeights


def route(logits: mx.array, num_chosen: int, is_normalized: bool) -> tuple[mx.array, mx.array]:
    """Choose the experts of each token by the router's logits, and weigh them.

    The weights are the probabilities of the chosen experts, from a softmax over all X experts. Compute it in
    float32, whatever the type of the logits.

    Args:
        logits: [T, X], one per expert.
        num_chosen: k, the number of experts per token, at most X.
        is_normalized: whether to divide the k weights of a token by their sum.

    Returns:
        experts: [T, k] int32, the likeliest first; of equally likely ones, the smaller number first.
        weights: [T, k] float32, in the same order.

    Source: Switch Transformers, arXiv:2101.03961, section 2.1; for k > 1, arXiv:1701.06538.
    """
    raise NotImplementedError("week 4 day 2 task 1: route is not written yet")


class Grouping(NamedTuple):
    """The rows of a batch, sorted by expert. A token has one row for each of its k experts.

    Attributes:
        tokens: [R] with R = T x k, the number of each row's token.
        experts: [R], each row's expert, in ascending order.
        places: [T, k], the number of the row that a token has for each of its choices.
    """

    tokens: mx.array
    experts: mx.array
    places: mx.array


def expected_num_experts(num_experts: int, num_chosen: int, num_tokens: int) -> float:
    """Mean number of experts that a step reads if each token chooses k different ones at random.

    All experts are equally likely. A token leaves out a given expert with probability 1 - k / X; all T tokens
    leave it out with the T-th power of that.

    Args:
        num_experts, num_chosen: X and k.
        num_tokens: T, may be 0.
    """
    raise NotImplementedError("week 4 day 2 task 2: expected_num_experts is not written yet")


def group_by_expert(experts: mx.array) -> Grouping:
    """Sort the rows of a batch by expert, so that the rows of each expert lie side by side.

    The rows of one expert stay in the order of their tokens.

    Args:
        experts: [T, k], as `route` returns them.
    """
    raise NotImplementedError("week 4 day 2 task 2: group_by_expert is not written yet")


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """The weights [X, out, in] of one projection of all experts, packed like `QuantizedWeights`.

    Args:
        packed: the weights of all experts below each other, of shape (X x out, in).
        num_experts: X

    Raises:
        ValueError: `num_experts` is not a positive integer, or does not divide the number of rows,
            `packed.shape`[0].
    """

    packed: QuantizedWeights
    num_experts: int

    def __post_init__(self) -> None:
        num_rows = self.packed.shape[0]
        check_integer("num_experts", self.num_experts, 1)
        if num_rows % self.num_experts:
            raise ValueError(f"num_experts must divide the {num_rows} rows of packed, got {self.num_experts}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, out, in)"""
        num_rows, num_inputs = self.packed.shape
        return self.num_experts, num_rows // self.num_experts, num_inputs


ExpertProjection = Callable[[mx.array, mx.array], mx.array]
"""Multiplies each row `[R, in]` by the weights of its expert `[R]`, to give `[R, out]`; experts ascend."""
GroupedMatmul = Callable[[mx.array, mx.array, ExpertWeights], mx.array]
"""Takes the arguments of `grouped_matmul_simple`, to give `[R, out]`."""
shaped_by_expert = shaped(x="[R, K]", experts="[R] integer", weights="[X, N, K]")
"""Decorates a `GroupedMatmul` to check the shapes of its arguments."""


@shaped_by_expert
def grouped_matmul_simple(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
    """Multiply each row by the weights of its expert.

    Simple and slow: multiply all rows by the weights of each expert in turn, and keep the rows it has.

    Args:
        x: [R, in]
        experts: [R], each row's expert, in ascending order. An expert may have no rows.
        weights: of shape (X, out, in).

    Returns:
        [R, out], in the promoted type of x and the scales.

    Raises:
        ValueError: raised by `shaped_by_expert`. The shapes of `x`, `experts` and `weights` do not fit each
            other, or `experts` does not hold integers. Their values are not checked: that would wait for the
            router.
    """
    raise NotImplementedError("week 4 day 2 task 3: grouped_matmul_simple is not written yet")
