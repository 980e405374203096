"""The decoder: written once, for every week. All of its parts are passed in.

Projections are callables, attention is a function, and the cache is an interface, so later days make the
model faster without touching it. Switches in `ModelConfig` make it a Qwen3, Qwen2.5 or Llama model.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from ..ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from ..ops.basics import Projection, as_projection
from ..ops.norm import Norm
from ..ops.positional_encoding import Rotation
from .config import ModelConfig
from .dense_kv_cache import TinyKvFullCache
from .embedding import TokenEmbedding
from .engine_operations import EngineOperations
from .kv_cache import TinyKvCache, check_offset

ProjectHeads = Callable[[mx.array, int | list[int]], Sequence[mx.array]]
"""A layer's `HeadProjection` as its attention calls it. A later day adds a faster one."""


class HeadProjection:
    """What of each token is compared and mixed: its queries, keys and values, in heads.

    Args:
        config: the sizes; hidden_size is E and head_dim is D.
        wq: [H_q x D, E], or a projection
        wk, wv: [H x D, E], or projections
        rope: rotates D dimensions; shared by all layers.
        q_norm, k_norm: over D, applied before the rotation; None for a model without them.

    Attributes:
        wq, wk, wv: as projections.
        rope, q_norm, k_norm: as passed in.
    """

    def __init__(
        self,
        config: ModelConfig,
        wq: mx.array | Projection,
        wk: mx.array | Projection,
        wv: mx.array | Projection,
        rope: Rotation,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
    ) -> None:
        self.head_dim = config.head_dim
        self.wq, self.wk, self.wv = map(as_projection, (wq, wk, wv))
        self.rope = rope
        self.q_norm, self.k_norm = q_norm, k_norm

    def __call__(self, x: mx.array, offset: int | list[int]) -> tuple[mx.array, mx.array, mx.array]:
        """Project x and split it into heads; normalize and rotate queries and keys, but not values.

        Args:
            x: [B, L, E]
            offset: position of the first token: one number for all rows, or a list with one per row.

        Returns:
            query [B, H_q, L, D], key and value [B, H, L, D].
        """
        query = self._heads(self.wq(x), self.q_norm, offset)
        key = self._heads(self.wk(x), self.k_norm, offset)
        return query, key, self._split(self.wv(x)).swapaxes(1, 2)

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


class Qwen3MultiHeadAttention:
    """Grouped-query self-attention with RoPE and, in Qwen3, normalized queries and keys.

    Two operations may be faster ones: `project_heads`, which makes the heads, and `attention`, which compares
    and mixes them.

    Args:
        config, wq, wk, wv, rope, q_norm, k_norm: as for `HeadProjection`.
        wo: [E, H_q x D], or a projection
        attention: the attention function.
        project_heads: makes a `HeadProjection`, or what is called like one, from the arguments of its class.

    Attributes:
        project_heads: what it made.
        wo: as a projection.
        attention: as passed in.
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
        project_heads: Callable[..., ProjectHeads] = HeadProjection,
    ) -> None:
        self.project_heads = project_heads(config, wq, wk, wv, rope, q_norm, k_norm)
        self.wo = as_projection(wo)
        self.attention = attention

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """Attend to the tokens of x and to the cached tokens before them.

        Args:
            x: [B, L, E]
            offset: as for `HeadProjection`.
            cache: this layer's cache; the new keys and values are appended to it.
            mask: which tokens a query may see, unless the cache makes its own mask.

        Returns:
            [B, L, E]
        """
        B, L, _ = x.shape
        query, key, value = self.project_heads(x, offset)
        if cache is None:
            output = self.attention(query, key, value, mask=mask)
        else:
            output = cache.attend(query, key, value, self.attention, mask)
        return self.wo(output.swapaxes(1, 2).reshape(B, L, -1))


class Qwen3TransformerBlock:
    """Attention, then MLP. Each gets the normalized input and adds its output to the unnormalized input.

    Attributes:
        attention, mlp, input_layernorm, post_attention_layernorm: as passed in.
    """

    attention: Qwen3MultiHeadAttention
    mlp: Callable[[mx.array], mx.array]
    input_layernorm: Norm
    post_attention_layernorm: Norm

    def __init__(
        self,
        attention: Qwen3MultiHeadAttention,
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
        """Compute [B, L, E] -> [B, L, E]. The arguments are those of the attention."""
        x = x + self.attention(self.input_layernorm(x), offset, cache, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3Model:
    """Embedding, blocks, norm and output head.

    Args:
        config: sizes and switches.
        embedding: [V, E]
        layers: the blocks, first to last.
        norm: over E, before the head.
        head: projection from E to V; None uses the embedding as the head (a tied model).

    Attributes:
        config, embedding, layers, norm: as passed in.
        head: as passed in, or the embedding's `as_linear`.
        operations: what an engine computes its steps with; the given `load_checkpoint` sets it.
    """

    config: ModelConfig
    embedding: TokenEmbedding
    layers: list[Qwen3TransformerBlock]
    norm: Norm
    head: Projection
    operations: EngineOperations = EngineOperations()

    def __init__(
        self,
        config: ModelConfig,
        embedding: TokenEmbedding,
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
        """Make an empty cache for one request: a list with one per layer."""
        return [TinyKvFullCache() for _ in self.layers]

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[TinyKvCache] | None = None,
        logits_to_keep: int | None = None,
    ) -> mx.array:
        """For each token, compute the logits of the token that follows it.

        Args:
            tokens: [B, L] ids, each below V. The ids are not checked, since that would wait for them to be
                computed.
            offset: position of the first token, which is the number of cached tokens: one number for all
                rows, or a list with one per row.
            cache: one per layer; new keys and values are appended. None means there are no earlier tokens.
            logits_to_keep: compute logits for this many last positions only; for all by default.

        Returns:
            [B, L, V], or [B, logits_to_keep, V] if fewer are kept.

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
        """Output of the last layer for each token, [B, L, E]. The arguments are those of `__call__`.

        Raises:
            ValueError: the shape of `tokens` is not [B, L] with L > 0; `len(cache)` is not
                `num_hidden_layers`; or `offset` is not `cache.offset` (`check_offset`). No layer has been
                called then.
        """
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must be [B, L] with at least one token, got shape {tokens.shape}")
        if cache is not None and len(cache) != len(self.layers):
            raise ValueError(f"cache must have one entry per layer: got {len(cache)} for {len(self.layers)}")
        if cache is not None:
            check_offset(offset, cache)
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, offset, cache[i] if cache is not None else None)
        return x

    def logits(self, x: mx.array) -> mx.array:
        """Apply the final norm and the head: [..., E] -> [..., V]"""
        return self.head(self.norm(x))
