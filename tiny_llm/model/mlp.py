"""The feed-forward half of a transformer block."""

import mlx.core as mx

from ..ops.basics import Projection


class Qwen3MLP:
    """SwiGLU: w_down(silu(w_gate(x)) * w_up(x)). Source: arXiv:2002.05202.

    Args:
        dim: E
        hidden_dim: I, the width of the hidden layer.
        w_gate, w_up: [I, E], or projections from E to I.
        w_down: [E, I], or a projection from I to E.

    Attributes:
        gate, up, down: the three as projections.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        w_gate: mx.array | Projection,
        w_up: mx.array | Projection,
        w_down: mx.array | Projection,
    ) -> None:
        raise NotImplementedError("week 1 day 4 task 2: Qwen3MLP.__init__ is not written yet")

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        raise NotImplementedError("week 1 day 4 task 2: Qwen3MLP.__call__ is not written yet")
