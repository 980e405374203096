"""The decoder: written once, for every week. All of its parts are passed in.

Projections are callables, attention is a function, and the cache is an interface, so later days make the
model faster without touching it. Switches in `ModelConfig` make it a Qwen3, Qwen2.5 or Llama model.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from ..ops.attention import Attention, Mask, scaled_dot_product_attention_grouped
from ..ops.basics import Projection
from ..ops.norm import Norm
from ..ops.positional_encoding import Rotation
from .config import ModelConfig
from .dense_kv_cache import TinyKvFullCache
from .embedding import TokenEmbedding
from .engine_operations import EngineOperations
from .kv_cache import TinyKvCache

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
        raise NotImplementedError("week 1 day 5 task 2: HeadProjection.__init__ is not written yet")

    def __call__(self, x: mx.array, offset: int | list[int]) -> tuple[mx.array, mx.array, mx.array]:
        """Project x and split it into heads; normalize and rotate queries and keys, but not values.

        Args:
            x: [B, L, E]
            offset: position of the first token: one number for all rows, or a list with one per row.

        Returns:
            query [B, H_q, L, D], key and value [B, H, L, D].
        """
        raise NotImplementedError("week 1 day 5 task 2: HeadProjection.__call__ is not written yet")


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
        raise NotImplementedError("week 1 day 5 task 2: Qwen3MultiHeadAttention.__init__ is not written yet")

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
        raise NotImplementedError("week 1 day 5 task 2: Qwen3MultiHeadAttention.__call__ is not written yet")


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
        raise NotImplementedError("week 1 day 5 task 3: Qwen3TransformerBlock.__init__ is not written yet")

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: TinyKvCache | None = None,
        mask: Mask = "causal",
    ) -> mx.array:
        """Compute [B, L, E] -> [B, L, E]. The arguments are those of the attention."""
        raise NotImplementedError("week 1 day 5 task 3: Qwen3TransformerBlock.__call__ is not written yet")


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
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.__init__ is not written yet")

    @property
    def num_hidden_layers(self) -> int:
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.num_hidden_layers is not written yet")

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        """Make an empty cache for one request: a list with one per layer."""
        raise NotImplementedError("week 2 day 1 task 2: Qwen3Model.create_kv_cache is not written yet")

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
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.__call__ is not written yet")

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
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.hidden_states is not written yet")

    def logits(self, x: mx.array) -> mx.array:
        """Apply the final norm and the head: [..., E] -> [..., V]"""
        raise NotImplementedError("week 1 day 5 task 3: Qwen3Model.logits is not written yet")
