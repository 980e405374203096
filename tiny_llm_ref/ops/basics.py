"""The three operations everything else is made of."""

from collections.abc import Callable

import mlx.core as mx

from kernel_runtime.native import is_invariant

Projection = Callable[[mx.array], mx.array]
"""A matrix product as a callable, `[..., in] -> [..., out]`: plain weights or quantized ones behind it."""


def softmax(x: mx.array, axis: int) -> mx.array:
    """Exponentials along an axis, divided by their sum.

    The largest value is subtracted first, so that no exponential overflows. The sum is taken in
    float32 whatever the type of x, since low precision loses the small terms of a long row.

    Args:
        x: any shape; -inf stands for an entry that takes no part.
        axis: the axis that sums to one.

    Returns:
        Same shape and type as x.
    """
    x32 = x.astype(mx.float32)
    exponentials = mx.exp(x32 - mx.max(x32, axis=axis, keepdims=True))
    return (exponentials / mx.sum(exponentials, axis=axis, keepdims=True)).astype(x.dtype)


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Matrix product with a weight stored as it is in a checkpoint, one row an output.

    Args:
        x: [..., in]
        w: [out, in]
        bias: [out]

    Returns:
        [..., out], in the promoted type of x, w and the bias.
    """
    product = x @ w.T
    return product if bias is None else product + bias


def silu(x: mx.array) -> mx.array:
    """x times its sigmoid, elementwise, in any shape and type; a small value is as accurate as a large one.

    Source: arXiv:1702.03118.
    """
    return x * mx.sigmoid(x)


def as_projection(weight: mx.array | Projection, bias: mx.array | None = None) -> Projection:
    """A weight `[out, in]` as a callable; what is callable already is returned as it is."""
    if not isinstance(weight, mx.array):
        return weight

    def project(x: mx.array) -> mx.array:
        return linear(x, weight, bias)

    return one_by_one(project) if is_invariant() else project


def one_by_one(project: Projection) -> Projection:
    """The projection, a row of x at a time: however many there are, each is the same product for a BLAS."""

    def project_rows(x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 0:
            return project(x)
        outputs = mx.concatenate([project(rows[i : i + 1]) for i in range(rows.shape[0])])
        return outputs.reshape(*x.shape[:-1], -1)

    return project_rows
