"""Token embeddings, plain and packed."""

from dataclasses import replace
from typing import Protocol

import mlx.core as mx

from ..ops.basics import linear
from ..ops.quantize import QuantizedMatmul, QuantizedWeights, dequantize_weights, quantized_matmul_simple


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
        if weight.shape != (vocab_size, embedding_dim):
            raise ValueError(f"weight must have shape {(vocab_size, embedding_dim)}, got {weight.shape}")
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        return self.weight[tokens]

    def as_linear(self, x: mx.array) -> mx.array:
        """Use the table as a tied model's output head: [..., E] -> [..., V]. The type is that of `linear`."""
        return linear(x, self.weight)


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
        if weights.shape != (vocab_size, embedding_dim):
            raise ValueError(
                f"packed weights must have shape {(vocab_size, embedding_dim)}, got {weights.shape}"
            )
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weights = weights
        self.matmul = matmul

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        ids = tokens.reshape(-1)
        rows = replace(
            self.weights,
            weight=self.weights.weight[ids],
            scales=self.weights.scales[ids],
            biases=self.weights.biases[ids],
        )
        return dequantize_weights(rows).reshape(*tokens.shape, self.embedding_dim)

    def as_linear(self, x: mx.array) -> mx.array:
        """Use the table as a tied model's output head: [..., E] -> [..., V]."""
        return self.matmul(x, self.weights)
