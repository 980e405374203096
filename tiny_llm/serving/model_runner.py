"""Run a step in one pass of the model, on the blocks of a pool."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from kernel_runtime.paged_check import PagedAttention

from ..generation.sampler import SamplingParams
from ..given.accelerate import best_paged_attention
from ..model.qwen3 import Qwen3Model
from .block_manager import BlockManager
from .forward_batch import ForwardBatch
from .given.best_sampler import best_sampler
from .given.sampling import BatchSampler, Sampled, StepSamples
from .given.scheduler_output import ScheduledTokens, SchedulerOutput
from .paged_kv_cache import PagedKvPool


class ModelRunner:
    """Call the model once per step, whatever the step consists of. Compute logits for final entries only.

    The runner holds nothing for a sequence except the contents of its blocks.

    Args:
        model: called as `hidden_states` and `logits`, with T rows of one token.
        blocks: the scheduler's block manager, which knows the blocks of each sequence.
        attention: paged attention; by default, the fastest that works on this machine.
        sampler: samples the rows of a step; by default, the fastest that works on this machine.
    """

    def __init__(
        self,
        model: Qwen3Model,
        blocks: BlockManager,
        attention: PagedAttention | None = None,
        sampler: BatchSampler | None = None,
    ) -> None:
        self.model = model
        self.blocks = blocks
        self.attention = best_paged_attention() if attention is None else attention
        self.sampler = best_sampler() if sampler is None else sampler
        self.pool = PagedKvPool(model.num_hidden_layers, blocks.num_blocks, blocks.block_size)
        blocks.forget_contents()

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step, and evaluate its samples and the pool before returning.

        Args:
            output: the step to compute.
            params: for each sequence with a final entry, by id. They have a seed unless they are greedy.

        Returns:
            The samples of the final entries, by sequence id.
        """
        raise NotImplementedError("week 3 day 3 task 4: ModelRunner.run is not written yet")

    def compute(
        self, batch: ForwardBatch, final: Items[ScheduledTokens], params: Mapping[int, SamplingParams]
    ) -> list[Sampled]:
        """Call the model and sample, without evaluating anything.

        Args:
            batch: the tokens of a step.
            final: the step's final entries, in the order of `batch.logits_indices`.
            params: as for `run`.

        Returns:
            The samples of the final entries; an empty list if there are none.
        """
        raise NotImplementedError("week 3 day 3 task 4: ModelRunner.compute is not written yet")

    def release(self, sequence_id: int) -> None:
        """Do nothing: the runner holds nothing for a sequence."""

    def close(self) -> None:
        """Free the pool."""
        self.pool.release()
