"""Root-mean-square normalization."""

from collections.abc import Callable

import mlx.core as mx

Norm = Callable[[mx.array], mx.array]
"""A norm as the model calls it, `[..., E] -> [..., E]`. A later day adds a faster one."""


class RMSNorm:
    """Divide each vector by its root mean square, then scale each dimension. Source: arXiv:1910.07467.

    Args:
        dim: E, the size of the last axis.
        weight: [E]
        eps: added to the mean square before the square root is taken.

    Attributes:
        weight: as passed in.

    Raises:
        ValueError: `weight` does not have the shape [E].
    """

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        raise NotImplementedError("week 1 day 4 task 1: RMSNorm.__init__ is not written yet")

    def __call__(self, x: mx.array) -> mx.array:
        """Normalize [..., E] -> [..., E]. Compute in float32 and return the type of x."""
        raise NotImplementedError("week 1 day 4 task 1: RMSNorm.__call__ is not written yet")
