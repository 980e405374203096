"""The bytes that a decode step reads, and the speed limit that memory bandwidth sets.

A decoded token uses each weight once, for two operations. A processor can do far more than two in the time
the weight takes to arrive. So a step takes at least bytes read / bandwidth. Source: the roofline model,
doi:10.1145/1498765.1498785.
"""

from collections.abc import Mapping

import mlx.core as mx

from .config import ModelConfig


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
    raise NotImplementedError("week 2 day 2 task 5: decode_bytes_per_token is not written yet")


def cache_bytes_per_token(config: ModelConfig, dtype: mx.Dtype = mx.float32) -> int:
    """Bytes of keys and values per token, over all layers. Every later step of the request reads them."""
    raise NotImplementedError("week 2 day 2 task 5: cache_bytes_per_token is not written yet")


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
    raise NotImplementedError("week 2 day 2 task 5: bandwidth_limit is not written yet")
