"""Token embeddings."""

import mlx.core as mx

from .basics import linear


class Embedding:
    """One vector for each token of the vocabulary.

    Args:
        vocab_size: V
        embedding_dim: E
        weight: [V, E]
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array) -> None:
        if weight.shape != (vocab_size, embedding_dim):
            raise ValueError(
                f"an embedding of {(vocab_size, embedding_dim)} was given a weight of {weight.shape}"
            )
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        return self.weight[tokens]

    def as_linear(self, x: mx.array) -> mx.array:
        """The output head of a model that shares its embedding: [..., E] -> [..., V]."""
        return linear(x, self.weight)
