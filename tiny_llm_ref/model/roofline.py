"""The bytes that a decode step reads, and the speed limit that memory bandwidth sets.

A decoded token uses each weight once, for two operations. A processor can do far more than two in the time
the weight takes to arrive. So a step takes at least bytes read / bandwidth. Source: the roofline model,
doi:10.1145/1498765.1498785.
"""

from collections.abc import Mapping

import mlx.core as mx

from .config import ModelConfig

EMBEDDING = "model.embed_tokens."
HEAD = "lm_head."


def decode_bytes_per_token(
    config: ModelConfig, tensors: Mapping[str, mx.array], dtype: mx.Dtype | None = None
) -> int:
    """Bytes of a checkpoint that are read to decode one token of one request.

    Every tensor counts in full, with two exceptions. If the model is not tied, only one row of the embedding
    is looked up. If it is tied, the embedding is the output head as well and counts in full, and an `lm_head`
    in the checkpoint is never read.

    Args:
        config: says whether the model is tied. If it doesn't, the model is tied unless there is an `lm_head`.
        tensors: arrays by their names in the checkpoint, packed or not; nothing is computed with them.
        dtype: type that floats are cast to when loaded; by default, their type in the checkpoint.
    """
    is_tied = config.tie_word_embeddings
    if is_tied is None:
        is_tied = not any(name.startswith(HEAD) for name in tensors)
    total = 0
    for name, tensor in tensors.items():
        num_bytes = _bytes_when_loaded(tensor, dtype)
        if name.startswith(EMBEDDING) and not is_tied:
            total += num_bytes // config.vocab_size
        elif not (name.startswith(HEAD) and is_tied):
            total += num_bytes
    return total


def cache_bytes_per_token(config: ModelConfig, dtype: mx.Dtype = mx.float32) -> int:
    """Bytes of keys and values per token, over all layers. Every later step of the request reads them."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.size


def bandwidth_limit(
    bytes_per_second: float, weight_bytes: int, batch_size: int = 1, cache_bytes: int = 0
) -> float:
    """Upper bound on decoded tokens per second, summed over all requests of a batch.

    A step reads the weights once, however many requests it decodes, and the cache of each request.

    Args:
        bytes_per_second: measured memory bandwidth.
        weight_bytes: read in each step, as counted by `decode_bytes_per_token`.
        batch_size: B, the number of requests that decode together.
        cache_bytes: per request: `cache_bytes_per_token` times the number of tokens in its context.

    Raises:
        ValueError: `weight_bytes` or `batch_size` is below 1.
    """
    if batch_size < 1 or weight_bytes < 1:
        raise ValueError(f"weight_bytes and batch_size must be at least 1, got {weight_bytes=} {batch_size=}")
    return batch_size * bytes_per_second / (weight_bytes + batch_size * cache_bytes)


def _bytes_when_loaded(tensor: mx.array, dtype: mx.Dtype | None) -> int:
    """Bytes of a tensor after loading: floats are cast to dtype, packed codes are not."""
    if dtype is None or not mx.issubdtype(tensor.dtype, mx.floating):
        return tensor.nbytes
    return tensor.size * dtype.size
