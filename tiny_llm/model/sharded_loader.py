"""Build one rank's part of a model: a model like any other, whose projections call the other ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ..ops.basics import Projection
from .config import ModelConfig
from .embedding import TokenEmbedding
from .loader import Quantization, Tensors
from .moe_loader import MoeConfig
from .operations import PLAIN_OPERATIONS, Operations
from .ranks import Ranks


def join(x: mx.array, ranks: Ranks) -> mx.array:
    """Put the parts of all ranks next to each other, in the order of the ranks: [..., n] -> [..., N x n]"""
    raise NotImplementedError("week 4 day 3 task 2: join is not written yet")


@dataclass(frozen=True)
class JoinedProjection:
    """A projection of which each rank computes a part of the outputs, and every rank gets all of them.

    Args:
        own: this rank's part.
        ranks: the others.
        is_input_split: whether x holds only this rank's part of the inputs.
    """

    own: Projection
    ranks: Ranks
    is_input_split: bool

    def __call__(self, x: mx.array) -> mx.array:
        """Join the inputs if they are split, multiply by this rank's rows, and join the outputs."""
        raise NotImplementedError("week 4 day 3 task 2: JoinedProjection.__call__ is not written yet")


@dataclass(frozen=True)
class ShardedEmbedding:
    """An embedding of which each rank has V / N rows: those of token rank x V / N and the tokens after it.

    Args:
        own: this rank's rows, as an embedding.
        num_rows: V / N
        ranks: the others.
    """

    own: TokenEmbedding
    num_rows: int
    ranks: Ranks

    def __call__(self, tokens: mx.array) -> mx.array:
        """Look up the tokens whose rows this rank has, take zeros for all others, and add up over the ranks.

        Every token is looked up on one rank. Adding zeros to it rounds nothing.

        Args:
            tokens: [...], ids below V, of any integer type.

        Returns:
            [..., E]
        """
        raise NotImplementedError("week 4 day 3 task 2: ShardedEmbedding.__call__ is not written yet")

    def as_linear(self, x: mx.array) -> mx.array:
        """Use the table as a tied model's output head: [..., E] -> [..., V]"""
        raise NotImplementedError("week 4 day 3 task 2: ShardedEmbedding.as_linear is not written yet")


class ShardedTensors(Tensors):
    """Hand out one rank's part of a checkpoint, as projections and embeddings for `build_model`.

    Args:
        tensors: the arrays of this rank, as `shard_tensors` returns them.
        quantization, dtype, operations: as for `Tensors`.
        ranks: the others.
    """

    def __init__(
        self,
        tensors: dict[str, mx.array],
        quantization: Quantization | None,
        dtype: mx.Dtype | None,
        operations: Operations = PLAIN_OPERATIONS,
        *,
        ranks: Ranks,
    ) -> None:
        super().__init__(tensors, quantization, dtype, operations)
        self.ranks = ranks

    def take_projection(self, layer: str, num_outputs: int, num_inputs: int, bias: bool) -> Projection:
        """The product with a layer's weight, and its bias if it has one.

        What follows o_proj, down_proj and lm_head needs their whole outputs. o_proj and down_proj themselves
        need their whole inputs, which are this rank's heads and its part of the MLP. All others stay split.

        Args:
            layer: its name, without .weight.
            num_outputs, num_inputs: as the part's `ModelConfig` says. It has the whole E and V, but only this
                rank's heads and its part of the MLP's width.
            bias: whether it has one.
        """
        raise NotImplementedError("week 4 day 3 task 3: ShardedTensors.take_projection is not written yet")

    def take_embedding(self, layer: str, vocab_size: int, dim: int) -> ShardedEmbedding:
        """The embedding of the whole vocabulary, `vocab_size`, of which this rank has its part."""
        raise NotImplementedError("week 4 day 3 task 3: ShardedTensors.take_embedding is not written yet")


def build_sharded_moe(
    moe: MoeConfig, config: ModelConfig, tensors: ShardedTensors, name: str
) -> Callable[[mx.array], mx.array]:
    """The mixture of a layer, of whose experts each rank has a part; the layer's MLP if it has no experts.

    Every rank routes all tokens, with the whole router. The experts are split as the MLP is.

    Args:
        moe: its `hidden_size` is this rank's part of I.
        config: of this rank's part.
        tensors: with flattened experts (`flatten_experts`), each of them split.
        name: what the tensors' names start with, such as model.layers.3.mlp for layer 3.
    """
    raise NotImplementedError("week 4 day 3 task 3: build_sharded_moe is not written yet")
