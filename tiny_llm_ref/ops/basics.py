"""Three operations that everything else is built from."""

from collections.abc import Callable

import mlx.core as mx

from kernel_runtime.native import is_invariant

Projection = Callable[[mx.array], mx.array]
"""A matrix product as a callable, `[..., in] -> [..., out]`, with plain or quantized weights."""


def softmax(x: mx.array, axis: int) -> mx.array:
    """Compute the exponentials along an axis, divided by their sum.

    Subtract the largest value first so that no exponential overflows. Compute in float32 whatever the
    type of x, since a sum in low precision loses the small terms of a long row.

    Args:
        x: any shape; an entry of -inf gets the probability 0.
        axis: the axis along which the result sums to 1.

    Returns:
        Same shape and type as x.
    """
    x32 = x.astype(mx.float32)
    exponentials = mx.exp(x32 - mx.max(x32, axis=axis, keepdims=True))
    return (exponentials / mx.sum(exponentials, axis=axis, keepdims=True)).astype(x.dtype)


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Multiply x by a weight stored as in a checkpoint, one row per output, and add the bias.

    Args:
        x: [..., in]
        w: [out, in]
        bias: [out]

    Returns:
        [..., out], in the promoted type of x, w and bias.
    """
    product = x @ w.T
    return product if bias is None else product + bias


def silu(x: mx.array) -> mx.array:
    """Compute x times its sigmoid, elementwise, in any shape and type.

    The relative error is small even where the result is close to zero: for x above -9 in float16, and above
    -80 in the other types. Source: arXiv:1702.03118.
    """
    return x * mx.sigmoid(x)


def as_projection(weight: mx.array | Projection, bias: mx.array | None = None) -> Projection:
    """Return a weight `[out, in]` as a callable. A callable is returned unchanged."""
    if not isinstance(weight, mx.array):
        return weight

    def project(x: mx.array) -> mx.array:
        return linear(x, weight, bias)

    return one_by_one(project) if is_invariant() else project


def one_by_one(project: Projection) -> Projection:
    """Apply the projection to one row of x at a time, so that a row's bits don't depend on the others."""

    def project_rows(x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 0:
            return project(x)
        outputs = mx.concatenate([project(rows[i : i + 1]) for i in range(rows.shape[0])])
        return outputs.reshape(*x.shape[:-1], -1)

    return project_rows
