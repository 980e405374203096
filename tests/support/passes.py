"""A model run in every way that an attention function must bear: at once, in chunks, and a ragged batch."""

from collections.abc import Callable

import mlx.core as mx

from tiny_llm import Qwen3Model
from tiny_llm.model.kv_cache import DenseKvCache
from tiny_llm.ops.attention import Mask

CHUNKS = (5, 1, 13, 2)
TOKENS = mx.array([[(7 * i * i + 3 * i + row) % 160 for i in range(sum(CHUNKS))] for row in (1, 5)])


def logits_in_chunks(model: Qwen3Model) -> mx.array:
    cache, offset, logits = model.create_kv_cache(), 0, []
    for size in CHUNKS:
        logits.append(model(TOKENS[:, offset : offset + size], offset, cache))
        offset += size
    return mx.concatenate(logits, axis=1)


class RaggedCache(DenseKvCache):
    """One layer's cache of rows of different lengths: a later day makes a better one."""

    def __init__(self, keys: mx.array, values: mx.array, lengths: list[int]) -> None:
        self.keys, self.values, self.lengths = keys, values, lengths

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask: Mask = None
    ) -> tuple[mx.array, mx.array, list[int], Mask]:
        L, S = key.shape[2], max(self.lengths) + key.shape[2]
        padding = [(0, 0), (0, 0), (0, S - self.keys.shape[2]), (0, 0)]
        keys, values, is_seen = mx.pad(self.keys, padding), mx.pad(self.values, padding), []
        for row, length in enumerate(self.lengths):
            keys[row, :, length : length + L] = key[row]
            values[row, :, length : length + L] = value[row]
            is_seen.append(mx.arange(S) <= length + mx.arange(L)[:, None])
        return keys, values, self.lengths, mx.where(mx.stack(is_seen), 0.0, -mx.inf)[:, None]

    @property
    def offset(self) -> list[int]:
        return self.lengths

    @property
    def state(self) -> list[mx.array]:
        return [self.keys, self.values]

    def release(self) -> None:
        self.keys, self.values = self.keys[:0], self.values[:0]


def logits_of_a_ragged_batch(model: Qwen3Model) -> mx.array:
    """Three new tokens for a row that holds 3 tokens and one that holds 17."""
    lengths, caches = [3, 17], model.create_kv_cache()
    model(TOKENS[:, :17], 0, caches)  # what lies beyond a row's length is masked
    ragged = [RaggedCache(*cache.fetch(), lengths) for cache in caches]
    return model(TOKENS[:, 17:20], lengths, ragged)


PASSES: dict[str, Callable[[Qwen3Model], mx.array]] = {
    "without a cache": lambda model: model(TOKENS),
    "in chunks, with a cache": logits_in_chunks,
    "of a ragged batch": logits_of_a_ragged_batch,
}
