"""The decoder: written once, for every week. What it is made of comes from outside.

Its projections are callables, its attention is a function and its cache an interface, so later days make
it faster without touching it. Switches of `ModelConfig` make it Qwen3, Qwen2.5 or Llama.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ..ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from ..ops.basics import Projection, as_projection
from ..ops.norm import Norm
from ..ops.positional_encoding import Rotation
from .config import ModelConfig
from .dense_kv_cache import TinyKvFullCache
from .embedding import Embedding, QuantizedEmbedding
from .kv_cache import TinyKvCache, check_offset


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
        self.head_dim = config.head_dim
        self.wq, self.wk, self.wv, self.wo = map(as_projection, (wq, wk, wv, wo))
        self.rope = rope
        self.q_norm, self.k_norm = q_norm, k_norm
        self.attention = attention

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
        B, L, _ = x.shape
        query = self._heads(self.wq(x), self.q_norm, offset)
        key = self._heads(self.wk(x), self.k_norm, offset)
        value = self._split(self.wv(x)).swapaxes(1, 2)
        if cache is None:
            output = self.attention(query, key, value, mask=mask)
        else:
            output = cache.attend(query, key, value, self.attention, mask)
        return self.wo(output.swapaxes(1, 2).reshape(B, L, -1))

    def _heads(self, x: mx.array, norm: Norm | None, offset: int | list[int]) -> mx.array:
        """[B, L, H x D] -> [B, H, L, D], normalized and rotated."""
        heads = self._split(x)
        if norm is not None:
            heads = norm(heads)
        return self.rope(heads, offset).swapaxes(1, 2)

    def _split(self, x: mx.array) -> mx.array:
        """[B, L, H x D] -> [B, L, H, D]"""
        B, L, _ = x.shape
        return x.reshape(B, L, -1, self.head_dim)


class Qwen3TransformerBlock:
    """Attention and MLP, each normalized before and added to what came in."""

    def __init__(
        self,
        attention: SelfAttention,
        mlp: Callable[[mx.array], mx.array],
        input_layernorm: Norm,
        post_attention_layernorm: Norm,
    ) -> None:
        self.attention = attention
        self.mlp = mlp
        self.input_layernorm = input_layernorm
        self.post_attention_layernorm = post_attention_layernorm

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """[B, L, E] -> [B, L, E]; the arguments are those of the attention."""
        x = x + self.attention(self.input_layernorm(x), offset, cache, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


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
        self.config = config
        self.embedding = embedding
        self.layers = list(layers)
        self.norm = norm
        self.head = head or embedding.as_linear

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        """An empty cache for one request: one a layer."""
        return [TinyKvFullCache() for _ in self.layers]

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
        x = self.hidden_states(tokens, offset, cache)
        if logits_to_keep is not None:
            x = x[:, max(0, x.shape[1] - logits_to_keep) :]
        return self.logits(x)

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
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must be [B, L] with at least one token, got shape {tokens.shape}")
        if cache is not None and len(cache) != len(self.layers):
            raise ValueError(f"{len(self.layers)} layers need as many caches, got {len(cache)}")
        if cache is not None:
            check_offset(offset, cache)
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, offset, cache[i] if cache is not None else None)
        return x

    def logits(self, x: mx.array) -> mx.array:
        """Norm and head: [..., E] -> [..., V]"""
        return self.head(self.norm(x))
