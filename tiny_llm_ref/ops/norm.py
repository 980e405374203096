"""Root-mean-square normalization."""

from collections.abc import Callable

import mlx.core as mx

Norm = Callable[[mx.array], mx.array]
"""A norm as the model calls it, `[..., E] -> [..., E]`; later days add a faster one."""


class RMSNorm:
    """Divides each vector by its root mean square and scales each dimension. Source: arXiv:1910.07467.

    Args:
        dim: E, the size of the last axis.
        weight: [E]
        eps: added to the mean square, under the root.

    Raises:
        ValueError: the `weight` has another shape.
    """

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        if weight.shape != (dim,):
            raise ValueError(f"the weight of an RMSNorm over {dim} dimensions has shape {weight.shape}")
        self.dim = dim
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """[..., E] -> [..., E] in the type of x; the mean of squares is taken in float32."""
        x32 = x.astype(mx.float32)
        mean_square = mx.mean(mx.square(x32), axis=-1, keepdims=True)
        return (self.weight * x32 * mx.rsqrt(mean_square + self.eps)).astype(x.dtype)
