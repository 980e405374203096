"""What an engine has by default: blocks for its requests, within half of the free memory, and a runner."""

import mlx.core as mx

from ..model.qwen3 import Qwen3Model
from ..model.roofline import cache_bytes_per_token
from ..paging.quantized_kv_pool import quantized_bytes_per_token
from ..scheduling.block_manager import BlockManager
from ..scheduling.blocks import Blocks, UnlimitedBlocks
from ..scheduling.scheduler import SchedulerConfig
from ..scheduling.scheduler_output import SchedulerOutput
from .dense_runner import DenseRunner, Runner
from .memory import free_memory
from .model_runner import ModelRunner

BLOCK_SIZE = 16
SHARE = 0.5
"""Fraction of the free memory; a step's activations and other programs need the rest."""


def default_blocks(
    model: Qwen3Model, config: SchedulerConfig, max_seq_len: int, kv_bits: int | None = None
) -> Blocks:
    """Make blocks for `max_num_seqs` requests of `max_seq_len` tokens, or as many as fit in memory.

    Return `UnlimitedBlocks` until days 3.2 and 3.3 are written.

    Args:
        model: the model whose keys and values the blocks store; in float32 or smaller, unless `kv_bits`.
        config: has the number of requests that run at once.
        max_seq_len: largest number of tokens in a request.
        kv_bits: bits of a quantized value, 4 or 8; None for floats.
    """
    try:
        bytes_per_block = BLOCK_SIZE * bytes_per_token(model, kv_bits)
        num_in_memory = int(SHARE * free_memory()) // bytes_per_block
        num_in_use = config.max_num_seqs * -(-max_seq_len // BLOCK_SIZE)
        blocks = BlockManager(max(1, min(num_in_use, num_in_memory)), BLOCK_SIZE)
        ModelRunner(model, blocks).run(SchedulerOutput(()), {})
    except NotImplementedError:
        return UnlimitedBlocks()
    return blocks


def bytes_per_token(model: Qwen3Model, kv_bits: int | None) -> int:
    """Bytes of a token's keys and values in all layers, in float32 or quantized."""
    if kv_bits is None:
        return cache_bytes_per_token(model.config, mx.float32)
    return quantized_bytes_per_token(model.config, kv_bits)


def make_runner(model: Qwen3Model, blocks: Blocks, kv_bits: int | None = None) -> Runner:
    """Make what computes an engine's steps.

    Raises:
        ValueError: `kv_bits` is neither 4 nor 8, or is given although the blocks belong to no pool or the
            `head_dim` of the model is not a multiple of 32.
    """
    if kv_bits is not None:
        quantized_bytes_per_token(model.config, kv_bits)  # refuses what cannot be quantized
    if isinstance(blocks, BlockManager):
        return ModelRunner(model, blocks, kv_bits=kv_bits)
    if kv_bits is not None:
        raise ValueError("quantized keys and values need the blocks of a pool: use BlockManager")
    return DenseRunner(model)
