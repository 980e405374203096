"""The feed-forward half of a block as a mixture of experts."""

import mlx.core as mx

from ..ops.basics import Projection, silu
from ..ops.experts import ExpertProjection, group_by_expert, route


class SparseMoe:
    """The feed-forward half of a block with X experts, of which each token uses k.

    Every expert is a SwiGLU as in `Qwen3MLP`: down(silu(gate(x)) x up(x)). A token's output is the sum of its
    experts' outputs, each times the router's weight.

    Args:
        router: projection from E to X logits.
        gate, up: projections of rows from E to I, each with the weights of the row's expert. They need the
            rows sorted by expert.
        down: the same from I to E.
        num_chosen: experts per token.
        is_normalized: whether the weights of a token's experts sum to 1.

    Attributes:
        router, num_chosen, is_normalized: as passed in.
    """

    router: Projection
    num_chosen: int
    is_normalized: bool

    def __init__(
        self,
        router: Projection,
        gate: ExpertProjection,
        up: ExpertProjection,
        down: ExpertProjection,
        num_chosen: int,
        is_normalized: bool,
    ) -> None:
        self.router = router
        self.gate = gate
        self.up = up
        self.down = down
        self.num_chosen = num_chosen
        self.is_normalized = is_normalized

    def __call__(self, x: mx.array) -> mx.array:
        """Route each token, compute its experts' outputs, and add them up by their weights.

        Multiply outputs and weights and add them up in float32; round once, to the type of x.

        Args:
            x: [B, L, E]

        Returns:
            [B, L, E], in the type of x.
        """
        tokens = x.reshape(-1, x.shape[-1])
        chosen, weights = route(self.router(tokens), self.num_chosen, self.is_normalized)
        rows, experts, places = group_by_expert(chosen)
        inputs = tokens[rows]
        hidden = silu(self.gate(inputs, experts)) * self.up(inputs, experts)
        outputs = self.down(hidden, experts)[places]  # [T, k, E]
        return mx.sum(outputs * weights[..., None], axis=1).astype(x.dtype).reshape(x.shape)
