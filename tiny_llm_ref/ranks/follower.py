"""What every rank but rank 0 does: compute its part of each step that rank 0 sends."""

import mlx.core as mx
import numpy as np

from ..engine.model_runner import ModelRunner
from ..model.kv_cache import TinyKvCache
from ..model.qwen3 import Qwen3Model
from ..model.ranks import Ranks
from ..paging.forward_batch import ForwardBatch
from ..paging.paged_kv_cache import Ints
from ..paging.quantized_batch import QuantizedBatch
from ..paging.quantized_kv_pool import QuantizedKvPool
from ..scheduling.block_manager import BlockManager
from .message import Kind, from_message, receive
from .watchdog import Watchdog


class Follower:
    """Compute steps until rank 0 stops.

    Args:
        part: this rank's part of the model.
        ranks: the others.

    Attributes:
        runner: has this rank's part of the pool; None before rank 0 has announced one.
    """

    def __init__(self, part: Qwen3Model, ranks: Ranks) -> None:
        self.model = part
        self.ranks = ranks
        self.runner: ModelRunner | None = None

    def run(self) -> None:
        """Receive messages and do what they say, until `Kind.STOP`."""
        while True:
            (kind, *numbers), *arrays = from_message(receive(self.ranks))
            if kind == Kind.STOP:
                return
            if kind == Kind.POOL:
                self.make_pool(*arrays[0].tolist())
            else:
                with Watchdog.guard(numbers[0] / 1e3):
                    self.compute(batch_of(arrays))

    def make_pool(self, num_blocks: int, block_size: int, kv_bits: int) -> None:
        """Replace the pool by an empty one. `kv_bits` is 0 for keys and values in floats."""
        blocks = BlockManager(num_blocks, block_size)
        self.runner = ModelRunner(self.model, blocks, kv_bits=kv_bits or None)

    def compute(self, batch: ForwardBatch) -> None:
        """Do what `ModelRunner.compute` does up to the logits, and wait for it.

        Evaluate what rank 0 evaluates, the pool and the logits of final entries, and nothing else. An
        exchange that one rank evaluates and another doesn't would keep the first one waiting.
        """
        runner = self.runner
        assert runner is not None  # rank 0 announces its pool before its first step
        states = self.model.hidden_states(batch.token_ids, batch.positions, self.caches_of(batch, runner))
        logits = [self.model.logits(states[batch.logits_indices])] if batch.logits_indices.size else []
        mx.eval(logits, runner.pool.state)

    def caches_of(self, batch: ForwardBatch, runner: ModelRunner) -> list[TinyKvCache]:
        """Return a cache per layer, after making room for the tails of a quantized batch."""
        if isinstance(batch, QuantizedBatch) and isinstance(runner.pool, QuantizedKvPool):
            tails = runner.pool.tails
            tails.num_tails = max(tails.num_tails, 1 + int(np.array(batch.tails).max()))
            runner.pool.reserve_tails()
        return [runner.cache_of(layer, batch) for layer in range(self.model.num_hidden_layers)]


def batch_of(arrays: list[Ints]) -> ForwardBatch:
    """Return the batch whose fields these are: `positions` as a list, all others as MLX arrays."""
    tables, starts, lengths, token_ids, positions, *rest = arrays
    kind = ForwardBatch if len(rest) == 2 else QuantizedBatch
    places = mx.array(tables), mx.array(starts), mx.array(lengths)
    return kind(*places, mx.array(token_ids), positions.tolist(), *map(mx.array, rest))
