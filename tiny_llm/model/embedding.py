"""Token embeddings, plain and packed."""

from typing import Protocol

import mlx.core as mx

from ..ops.quantize import QuantizedMatmul, QuantizedWeights, quantized_matmul_simple


class TokenEmbedding(Protocol):
    """An embedding as the model calls it, however its vectors are stored."""

    def __call__(self, tokens: mx.array) -> mx.array: ...

    def as_linear(self, x: mx.array) -> mx.array: ...


class Embedding:
    """A table with one vector per token of the vocabulary.

    Args:
        vocab_size: V
        embedding_dim: E
        weight: [V, E]

    Attributes:
        weight: as passed in.

    Raises:
        ValueError: `weight` does not have the shape [V, E].
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array) -> None:
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__init__ is not written yet")

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__call__ is not written yet")

    def as_linear(self, x: mx.array) -> mx.array:
        """Use the table as a tied model's output head: [..., E] -> [..., V]. The type is that of `linear`."""
        raise NotImplementedError("week 1 day 5 task 1: Embedding.as_linear is not written yet")


class QuantizedEmbedding:
    """An embedding whose weight stays packed. A lookup expands only the rows of its tokens.

    Args:
        vocab_size: V
        embedding_dim: E
        weights: of shape (V, E)
        matmul: computes the product of the output head.

    Raises:
        ValueError: the shape of `weights` is not `(vocab_size, embedding_dim)`; the message shows the two
            shapes.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        weights: QuantizedWeights,
        matmul: QuantizedMatmul = quantized_matmul_simple,
    ) -> None:
        raise NotImplementedError("week 2 day 2 task 4: QuantizedEmbedding.__init__ is not written yet")

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        raise NotImplementedError("week 2 day 2 task 4: QuantizedEmbedding.__call__ is not written yet")

    def as_linear(self, x: mx.array) -> mx.array:
        """Use the table as a tied model's output head: [..., E] -> [..., V]."""
        raise NotImplementedError("week 2 day 2 task 4: QuantizedEmbedding.as_linear is not written yet")
