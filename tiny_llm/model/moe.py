"""The feed-forward half of a block as a mixture of experts."""

import mlx.core as mx

from ..ops.basics import Projection
from ..ops.experts import ExpertProjection


class SparseMoe:
    """A SwiGLU per expert, of which each token uses a few: the sum of their outputs, by the router's weights.

    Args:
        router: projection from E to X logits.
        gate, up: projections of each row from E to I, by its expert.
        down: the same from I to E.
        num_chosen: experts per token.
        is_normalized: whether the weights of a token's experts sum to 1.
    """

    def __init__(
        self,
        router: Projection,
        gate: ExpertProjection,
        up: ExpertProjection,
        down: ExpertProjection,
        num_chosen: int,
        is_normalized: bool,
    ) -> None:
        raise NotImplementedError("week 4 day 2 task 3: SparseMoe.__init__ is not written yet")

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        raise NotImplementedError("week 4 day 2 task 3: SparseMoe.__call__ is not written yet")
