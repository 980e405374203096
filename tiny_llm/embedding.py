"""Token embeddings."""

import mlx.core as mx


class Embedding:
    """One vector for each token of the vocabulary.

    Args:
        vocab_size: V
        embedding_dim: E
        weight: [V, E]
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array) -> None:
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__init__ is not written yet")

    def __call__(self, tokens: mx.array) -> mx.array:
        """[...] token ids -> [..., E]"""
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__call__ is not written yet")

    def as_linear(self, x: mx.array) -> mx.array:
        """The output head of a model that shares its embedding: [..., E] -> [..., V]."""
        raise NotImplementedError("week 1 day 5 task 1: Embedding.as_linear is not written yet")
