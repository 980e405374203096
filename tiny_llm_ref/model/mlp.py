"""The feed-forward half of a transformer block."""

import mlx.core as mx

from ..ops.basics import Projection, as_projection, silu


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
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.gate = as_projection(w_gate)
        self.up = as_projection(w_up)
        self.down = as_projection(w_down)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        return self.down(silu(self.gate(x)) * self.up(x))
