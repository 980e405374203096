"""An engine's default blocks: as many as its requests can use, within half of the free memory."""

import mlx.core as mx

from ...model.qwen3 import Qwen3Model
from ...model.roofline import cache_bytes_per_token
from ..block_manager import BlockManager
from ..model_runner import ModelRunner
from ..scheduler import SchedulerConfig
from .blocks import Blocks, UnlimitedBlocks
from .scheduler_output import SchedulerOutput

BLOCK_SIZE = 16
SHARE = 0.5
"""Fraction of the free memory; a step's activations and other programs need the rest."""


def default_blocks(model: Qwen3Model, config: SchedulerConfig, max_seq_len: int) -> Blocks:
    """Make blocks for `max_num_seqs` requests of `max_seq_len` tokens, or as many as fit in memory.

    Return `UnlimitedBlocks` until days 3.2 and 3.3 are written.

    Args:
        model: the model whose keys and values the blocks store, in float32 or smaller.
        config: has the number of requests that run at once.
        max_seq_len: largest number of tokens in a request.
    """
    try:
        bytes_per_block = BLOCK_SIZE * cache_bytes_per_token(model.config, mx.float32)
        num_in_memory = int(SHARE * free_memory()) // bytes_per_block
        num_in_use = config.max_num_seqs * -(-max_seq_len // BLOCK_SIZE)
        blocks = BlockManager(max(1, min(num_in_use, num_in_memory)), BLOCK_SIZE)
        ModelRunner(model, blocks).run(SchedulerOutput(()), {})
    except NotImplementedError:
        return UnlimitedBlocks()
    return blocks


def free_memory() -> int:
    """Bytes that MLX may still allocate."""
    # On a Mac, the limit exceeds what the GPU can keep resident. Only Metal reports that size.
    most = mx.device_info().get("max_recommended_working_set_size", mx.get_memory_limit())
    return max(0, min(int(most), mx.get_memory_limit()) - mx.get_active_memory())
