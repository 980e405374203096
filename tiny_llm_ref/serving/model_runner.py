"""Runs a step in one pass of the model, on the blocks of a pool."""

import mlx.core as mx

from kernel_runtime.paged_check import PagedAttention

from ..generation.generate import to_logprobs
from ..generation.sampler import token_id
from ..given.accelerate import best_paged_attention
from ..model.qwen3 import Qwen3Model
from .block_manager import BlockManager
from .dense_runner import Samplers
from .forward_batch import ForwardBatch, RaggedKvCache
from .given.scheduler_output import SchedulerOutput
from .paged_kv_cache import PagedKvPool


class ModelRunner:
    """One call of the model a step, whatever the step is made of; logits for those that sample alone.

    It holds nothing of a sequence but what is in the blocks that the block manager says are its own.

    Args:
        model: called by its two halves, with T rows of one token.
        blocks: which sequence has which blocks; the scheduler's own.
        attention: attends to blocks; the fastest that works here unless given.
    """

    def __init__(
        self, model: Qwen3Model, blocks: BlockManager, attention: PagedAttention | None = None
    ) -> None:
        self.model = model
        self.blocks = blocks
        self.attention = best_paged_attention() if attention is None else attention
        self.pool = PagedKvPool(model.num_hidden_layers, blocks.num_blocks, blocks.block_size)
        blocks.forget_contents()

    def run(self, output: SchedulerOutput, samplers: Samplers) -> dict[int, int]:
        """Compute a step; the samples and the pool are evaluated before this returns.

        Args:
            output: what to compute.
            samplers: of each sequence with a final entry, by its id; each gets log-probabilities [1, V].

        Returns:
            The token sampled for each final entry, by the id of its sequence.
        """
        if not output.entries:
            return {}
        batch = ForwardBatch.of(output, self.blocks.tables, self.pool)
        caches = [
            RaggedKvCache(self.pool, layer, batch, self.attention) for layer in range(self.pool.num_layers)
        ]
        states = self.model.hidden_states(batch.token_ids, batch.positions, caches)
        sampled: dict[int, mx.array] = {}
        if output.final:
            logprobs = to_logprobs(self.model.logits(states[batch.final_rows]))  # [final entries, V]
            for row, entry in enumerate(output.final):
                sampled[entry.sequence.id] = samplers[entry.sequence.id](logprobs[row : row + 1])
        mx.eval(list(sampled.values()), self.pool.state)
        return {sequence_id: token_id(token) for sequence_id, token in sampled.items()}

    def release(self, sequence_id: int) -> None:
        """Nothing is held for a sequence here."""

    def close(self) -> None:
        """Give back the pool."""
        self.pool.release()
