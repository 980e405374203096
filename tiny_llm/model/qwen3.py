"""The decoder: written once, for every week. What it is made of comes from outside.

Its projections are callables, its attention is a function and its cache an interface, so later days make
it faster without touching it. Switches of `ModelConfig` make it Qwen3, Qwen2.5 or Llama.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from ..ops.basics import Projection
from ..ops.norm import Norm
from ..ops.positional_encoding import Rotation
from .config import ModelConfig
from .dense_kv_cache import TinyKvFullCache
from .embedding import Embedding, QuantizedEmbedding
from .kv_cache import TinyKvCache


class SelfAttention(Protocol):
    """A layer's attention as its block calls it, with Qwen3MultiHeadAttention's arguments."""

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array: ...


class Qwen3MultiHeadAttention:
    """Grouped-query self-attention with rotary positions and, in Qwen3, normalized queries and keys.

    Args:
        config: sizes; E is its hidden_size, D its head_dim.
        wq: [H_q x D, E], or a projection
        wk, wv: [H x D, E], or projections
        wo: [E, H_q x D], or a projection
        rope: rotation of D dimensions, shared by all layers.
        q_norm, k_norm: over D, or None for a model without them.
        attention: the function that attends.
    """

    def __init__(
        self,
        config: ModelConfig,
        wq: mx.array | Projection,
        wk: mx.array | Projection,
        wv: mx.array | Projection,
        wo: mx.array | Projection,
        rope: Rotation,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        attention: Attention = scaled_dot_product_attention_grouped,
    ) -> None:
        raise NotImplementedError("week 1 day 5 task 2: Qwen3MultiHeadAttention.__init__ is not written yet")

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """Attend to the tokens of x and to what the cache holds before them.

        Args:
            x: [B, L, E]
            offset: position of the first token, one for all rows or one a row.
            cache: this layer's; the new keys and values are appended to it.
            mask: which tokens a query may see, unless the cache knows better.

        Returns:
            [B, L, E]
        """
        raise NotImplementedError("week 1 day 5 task 2: Qwen3MultiHeadAttention.__call__ is not written yet")


class Qwen3TransformerBlock:
    """Attention and MLP, each normalized before and added to what came in."""

    def __init__(
        self,
        attention: SelfAttention,
        mlp: Callable[[mx.array], mx.array],
        input_layernorm: Norm,
        post_attention_layernorm: Norm,
    ) -> None:
        raise NotImplementedError("week 1 day 5 task 3: Qwen3TransformerBlock.__init__ is not written yet")

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """[B, L, E] -> [B, L, E]; the arguments are those of the attention."""
        raise NotImplementedError("week 1 day 5 task 3: Qwen3TransformerBlock.__call__ is not written yet")


class Qwen3Model:
    """Embedding, blocks, norm and output head.

    Args:
        config: sizes and switches.
        embedding: [V, E]
        layers: the blocks, first to last.
        norm: over E, before the head.
        head: projection from E to V; None ties it to the embedding.

    Attributes:
        config: as it was given.
    """

    config: ModelConfig

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding | QuantizedEmbedding,
        layers: Sequence[Qwen3TransformerBlock],
        norm: Norm,
        head: Projection | None = None,
    ) -> None:
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.__init__ is not written yet")

    @property
    def num_hidden_layers(self) -> int:
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.num_hidden_layers is not written yet")

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        """An empty cache for one request: one a layer."""
        raise NotImplementedError("week 2 day 1 task 2: Qwen3Model.create_kv_cache is not written yet")

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[TinyKvCache] | None = None,
        logits_to_keep: int | None = None,
    ) -> mx.array:
        """Logits of the next token after each of the tokens.

        Args:
            tokens: [B, L] ids, each below V. That they are is not checked: it would mean to wait for them.
            offset: position of the first token, one for all rows or one a row: what the cache holds.
            cache: one a layer, appended to; None computes everything anew.
            logits_to_keep: only the last so many positions get logits; all of them unless given.

        Returns:
            [B, L or logits_to_keep, V]

        Raises:
            ValueError: as for `hidden_states`.
        """
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.__call__ is not written yet")

    def hidden_states(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[TinyKvCache] | None = None,
    ) -> mx.array:
        """What the last layer gives for each token, [B, L, E]; the arguments are those of the call.

        Raises:
            ValueError: `tokens` are not [B, L] with L > 0; the caches, `len(cache)`, are not one a layer,
                `num_hidden_layers`; or the `offset` is not where they end, `cache.offset` (`check_offset`).
        """
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.hidden_states is not written yet")

    def logits(self, x: mx.array) -> mx.array:
        """Norm and head: [..., E] -> [..., V]"""
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.logits is not written yet")
