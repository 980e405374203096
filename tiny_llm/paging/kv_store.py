"""Keys and values in floats or quantized: a pool, and the batches and caches that belong to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from ..model.config import ModelConfig
from ..model.engine_operations import EngineOperations
from ..model.kv_cache import TinyKvCache
from ..model.roofline import cache_bytes_per_token
from ..scheduling.block_manager import BlockTable
from ..scheduling.scheduler_output import SchedulerOutput
from .forward_batch import ForwardBatch, RaggedKvCache
from .paged_kv_cache import PagedKvPool
from .pool import Pool
from .quantized_batch import QuantizedBatch, QuantizedKvCache
from .quantized_kv_pool import QuantizedKvPool, quantized_bytes_per_token


@dataclass(frozen=True)
class KvStore:
    """A pool and what fits it.

    Attributes:
        pool: stores keys and values.
        batch_of: makes the batch of a step from the scheduler's output and the block tables.
        cache_of: makes the cache of a layer from its number, a batch and the attention.
        attention: returns the attention to the blocks of the pool.
    """

    pool: Pool
    batch_of: Callable[[SchedulerOutput, Mapping[int, BlockTable]], ForwardBatch]
    cache_of: Callable[..., TinyKvCache]
    attention: Callable[[], Callable[..., mx.array]]


def make_kv_store(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    operations: EngineOperations,
    kv_bits: int | None = None,
) -> KvStore:
    """Make an empty pool, and say what fits it.

    Args:
        num_layers, num_blocks, block_size: as for `PagedKvPool`.
        operations: write to the pool and attend to it.
        kv_bits: bits of a quantized value, 4 or 8 (day 4.1); None for keys and values in floats.

    Raises:
        ValueError: as for `PagedKvPool` and `QuantizedKvPool`.
    """
    sizes, store_rows = (num_layers, num_blocks, block_size), operations.store_rows()
    if kv_bits is None:
        floats = PagedKvPool(*sizes, store_rows)
        return KvStore(
            floats,
            batch_of=partial(ForwardBatch.of, pool=floats),
            cache_of=partial(RaggedKvCache, floats),
            attention=operations.paged_attention,
        )
    quantized = QuantizedKvPool(*sizes, kv_bits, store_rows, operations.quantize_blocks())
    return KvStore(
        quantized,
        batch_of=partial(QuantizedBatch.of_quantized, pool=quantized),
        cache_of=partial(QuantizedKvCache, quantized),
        attention=operations.quantized_attention,
    )


def kv_bytes_per_token(config: ModelConfig, kv_bits: int | None, dtype: mx.Dtype = mx.float32) -> int:
    """Bytes of a token's keys and values in all layers, quantized or in floats of a type.

    Raises:
        ValueError: as for `quantized_bytes_per_token`.
    """
    if kv_bits is None:
        return cache_bytes_per_token(config, dtype)
    return quantized_bytes_per_token(config, kv_bits)
