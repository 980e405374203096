"""What a request gets alone with quantized keys and values, by another way than the engine's."""

import mlx.core as mx

from tiny_llm.model.kv_cache import TinyKvCache
from tiny_llm.ops.attention import Attention, Mask
from tiny_llm.ops.quantized_blocks import dequantize_heads, quantize_heads


class QuantizingCache(TinyKvCache):
    """A layer's cache for one call of the model on a whole sequence: each query sees it as in blocks.

    Args:
        block_size: tokens of a block.
        kv_bits: bits of a value; keys have 8.
    """

    def __init__(self, block_size: int, kv_bits: int) -> None:
        self.block_size = block_size
        self.kv_bits = kv_bits

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """Compute all scores twice, with quantized keys and with floats, and take those that a query sees."""
        _, H_q, L, D = query.shape
        key, value = (mx.repeat(x, H_q // x.shape[1], axis=1) for x in (key, value))
        rounded_key = dequantize_heads(quantize_heads(key, 8), D)
        rounded_value = dequantize_heads(quantize_heads(value, self.kv_bits), D)
        position = mx.arange(L)
        is_full = position < (position[:, None] + 1) // self.block_size * self.block_size
        scores = mx.where(is_full, query @ rounded_key.swapaxes(2, 3), query @ key.swapaxes(2, 3)) * D**-0.5
        weights = mx.softmax(mx.where(position <= position[:, None], scores, -mx.inf), axis=-1)
        return mx.where(is_full, weights, 0) @ rounded_value + mx.where(is_full, 0, weights) @ value

    @property
    def offset(self) -> int:
        return 0

    @property
    def state(self) -> list[mx.array]:
        return []

    def release(self) -> None:
        pass
