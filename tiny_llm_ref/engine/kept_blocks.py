"""Copies of blocks between a pool and files: out before a step overwrites them, in before it reads them."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import islice

import mlx.core as mx
import numpy as np

from ..paging.block_file import Block, Packed
from ..paging.forward_batch import ForwardBatch
from ..paging.kv_files import KvFiles
from ..paging.pool import Pool
from ..scheduling.block_hashes import Prefix
from ..scheduling.scheduler import Scheduler
from ..scheduling.scheduler_output import SchedulerOutput
from ..scheduling.tiered_blocks import TieredBlockManager
from .dense_runner import Runner
from .execution import Execution, MakeExecution
from .model_runner import ModelRunner

DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "U32": mx.uint32}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ARRAYS = ("keys", "values")
NUM_AT_ONCE = 16
"""Blocks to copy in one piece while the engine is idle."""
SECONDS = 0.05
"""How long an idle engine waits for a slow disk before it looks for something else to do."""


def read_blocks(pool: Pool, block_ids: list[int]) -> list[Block]:
    """Copy blocks out of a pool: [layers, block_size, ...] for keys and values each."""
    ids = mx.array(block_ids)
    layers = [pool.blocks(layer)[:2] for layer in range(pool.num_layers)]
    rows = []
    for arrays in zip(*layers, strict=True):
        stacked = mx.stack([each[ids] for each in arrays], axis=1)
        data = np.array(stacked.view(mx.uint8)).reshape(len(block_ids), -1)
        rows.append([Packed(NAMES[stacked.dtype], stacked.shape[1:], row) for row in data])
    return [dict(zip(ARRAYS, each, strict=True)) for each in zip(*rows, strict=True)]


def restore_blocks(pool: Pool, blocks: Mapping[int, Block]) -> None:
    """Copy blocks into a pool, by their numbers there. They are written when the pool is evaluated."""
    ids = mx.array(list(blocks))
    arrays = [joined([block[name] for block in blocks.values()]) for name in ARRAYS]
    for layer in range(pool.num_layers):
        keys, values = [each[:, layer] for each in arrays]
        pool.restore(layer, ids, keys, values)


def joined(parts: Items[Packed]) -> mx.array:
    """Arrays of one shape and type as one: [len(parts), ...]."""
    data = mx.array(np.stack([each.data for each in parts]))
    return data.view(DTYPES[parts[0].dtype]).reshape(len(parts), *parts[0].shape)


class BlockCopies:
    """The copies of one engine.

    What is copied out goes to the files only when the next copies are made. By then the step has ended that
    filled the blocks; if it failed, the engine is closed and the copies are dropped.

    Args:
        blocks: says what to copy.
        pool: has the blocks.
        files: where evicted blocks go.
    """

    def __init__(self, blocks: TieredBlockManager[Block], pool: Pool, files: KvFiles) -> None:
        self.blocks = blocks
        self.pool = pool
        self.files = files
        self._copied: list[tuple[Prefix, Block]] = []

    def before_step(self) -> None:
        """Copy what the step that was scheduled last would overwrite, and what it expects to find."""
        self._store_copied()
        evicted, restored = self.blocks.take_copies()
        wanted = {block: prefix for block, prefix in evicted.items() if self.files.wants(prefix)}
        if wanted:
            self._copied = list(zip(wanted.values(), read_blocks(self.pool, list(wanted)), strict=True))
        if restored:
            restore_blocks(self.pool, restored)

    def when_idle(self) -> Iterator[None]:
        """Store all cached blocks, a few at a time: those that were released last, first blocks first.

        No step may be under way that has not ended well.
        """
        self._store_copied()
        cached = [block for block in reversed(self.blocks.cached_blocks) if not self.blocks.is_awaited(block)]
        wanted = (block for block in cached if self.files.wants(self.blocks.prefix_of[block]))
        while block_ids := list(islice(wanted, NUM_AT_ONCE)):
            for id, block in zip(block_ids, read_blocks(self.pool, block_ids), strict=True):
                while not self.files.store(self.blocks.prefix_of[id], block, SECONDS):
                    yield
            yield

    def _store_copied(self) -> None:
        copied, self._copied = self._copied, []
        for prefix, block in copied:
            self.files.store(prefix, block)


class KeepingRunner(ModelRunner):
    """A runner that copies blocks before each step.

    Args:
        runner: has the model and the pool.
        copies: what it copies.
    """

    def __init__(self, runner: ModelRunner, copies: BlockCopies) -> None:
        vars(self).update(vars(runner))
        self.copies = copies

    def batch_of(self, output: SchedulerOutput) -> ForwardBatch:
        """Flatten a step, for the kind of pool that this runner has, after copying blocks for it."""
        self.copies.before_step()
        return super().batch_of(output)


class KeptBlocks:
    """What an engine needs to keep its blocks in files, and what the next one needs after a failed step.

    Args:
        files: where the blocks are.
    """

    def __init__(self, files: KvFiles) -> None:
        self.files = files
        self._copies: BlockCopies | None = None

    def execution(self, make: MakeExecution) -> MakeExecution:
        """Make the execution of an engine whose blocks are kept. Its blocks are a `TieredBlockManager`."""

        def make_keeping(scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> Execution:
            blocks = scheduler.blocks
            if not isinstance(runner, ModelRunner) or not isinstance(blocks, TieredBlockManager):
                raise ValueError("only the blocks of a pool can be kept in files: leave out --kv-cache-dir")
            self._copies = BlockCopies(blocks, runner.pool, self.files)
            return make(scheduler, KeepingRunner(runner, self._copies), clock)

        return make_keeping

    def when_idle(self) -> Iterator[None]:
        """Store what the prefix cache of the last engine holds, a few blocks at a time."""
        return iter(()) if self._copies is None else self._copies.when_idle()
