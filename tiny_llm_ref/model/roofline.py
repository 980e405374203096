"""What a decode step has to read, and how fast memory lets it be.

A decoded token needs each weight once, for two operations: far fewer than a processor does in the time that
the weight takes to arrive. So the time of a step is bytes read / bandwidth, at best. Source: the roofline
model, doi:10.1145/1498765.1498785.
"""

from collections.abc import Mapping

import mlx.core as mx

from .config import ModelConfig

EMBEDDING = "model.embed_tokens."
HEAD = "lm_head."


def decode_bytes_per_token(
    config: ModelConfig, tensors: Mapping[str, mx.array], dtype: mx.Dtype | None = None
) -> int:
    """Bytes of a checkpoint that decoding one token of one request reads.

    All of it, but for the embedding: one row is looked up, unless the model is tied and the table is its
    output head as well. A tied model has no other head, whatever the checkpoint holds.

    Args:
        config: says whether the model is tied; where it does not, the tensors do, as for the loader.
        tensors: arrays by their names in the checkpoint, packed or not; nothing is computed with them.
        dtype: type that the floats are cast to at loading; that of the checkpoint unless given.
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
    """Bytes of keys and values that a token leaves in all layers, for every later step to read."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.size


def bandwidth_limit(
    bytes_per_second: float, weight_bytes: int, batch_size: int = 1, cache_bytes: int = 0
) -> float:
    """Most tokens a second that a decode of several requests can reach, all of them together.

    The weights are read once a step, whatever the number of requests; each request has its own cache.

    Args:
        bytes_per_second: of memory, as measured.
        weight_bytes: read in each step, as `decode_bytes_per_token` counts them.
        batch_size: requests that decode together, B.
        cache_bytes: of each request: `cache_bytes_per_token` times the tokens of its context.

    Raises:
        ValueError: `weight_bytes` or `batch_size` is below 1.
    """
    if batch_size < 1 or weight_bytes < 1:
        raise ValueError(f"a step reads weights for a request at least, got {weight_bytes=} {batch_size=}")
    return batch_size * bytes_per_second / (weight_bytes + batch_size * cache_bytes)


def _bytes_when_loaded(tensor: mx.array, dtype: mx.Dtype | None) -> int:
    """Packed codes keep their size, floats get that of the type they are cast to."""
    if dtype is None or not mx.issubdtype(tensor.dtype, mx.floating):
        return tensor.nbytes
    return tensor.size * dtype.size
