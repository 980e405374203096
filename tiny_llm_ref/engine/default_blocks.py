"""What an engine has by default: blocks for its requests, within half of the free memory, and a runner."""

from ..model.optional import once_written
from ..model.qwen3 import Qwen3Model
from ..paging.kv_store import kv_bytes_per_token
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
    blocks = blocks_in_memory(model, config, max_seq_len, kv_bits)
    return UnlimitedBlocks() if blocks is None else blocks


@once_written
def blocks_in_memory(
    model: Qwen3Model, config: SchedulerConfig, max_seq_len: int, kv_bits: int | None
) -> BlockManager:
    """Do what `default_blocks` does, and run an empty step on the blocks."""
    bytes_per_block = BLOCK_SIZE * kv_bytes_per_token(model.config, kv_bits)
    num_in_memory = int(SHARE * free_memory()) // bytes_per_block
    num_in_use = config.max_num_seqs * -(-max_seq_len // BLOCK_SIZE)
    blocks = BlockManager(max(1, min(num_in_use, num_in_memory)), BLOCK_SIZE)
    ModelRunner(model, blocks).run(SchedulerOutput(()), {})
    return blocks


def make_runner(model: Qwen3Model, blocks: Blocks, kv_bits: int | None = None) -> Runner:
    """Make what computes an engine's steps.

    Raises:
        ValueError: `kv_bits` is neither 4 nor 8, or is given although the blocks belong to no pool or the
            `head_dim` of the model is not a multiple of 32.
    """
    if kv_bits is not None:
        kv_bytes_per_token(model.config, kv_bits)  # refuses what cannot be quantized
    if isinstance(blocks, BlockManager):
        return ModelRunner(model, blocks, kv_bits=kv_bits)
    if kv_bits is not None:
        raise ValueError("quantized keys and values need the blocks of a pool: use BlockManager")
    return DenseRunner(model)
