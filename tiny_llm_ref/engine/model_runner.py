"""Run a step in one pass of the model, on the blocks of a pool."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

import mlx.core as mx

from ..generation.sampler import SamplingParams
from ..model.kv_cache import TinyKvCache
from ..model.qwen3 import Qwen3Model
from ..paging.forward_batch import ForwardBatch
from ..paging.kv_store import make_kv_store
from ..scheduling.block_manager import BlockManager
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .sampling_batch import BatchSampler, Sampled, StepSamples, read_samples, sampler_of


class ModelRunner:
    """Call the model once per step, whatever the step consists of. Compute logits for final entries only.

    The runner holds nothing for a sequence except the contents of its blocks.

    Args:
        model: called as `hidden_states` and `logits`, with T rows of one token.
        blocks: the scheduler's block manager, which knows the blocks of each sequence.
        attention: paged attention, or attention to quantized blocks with `kv_bits`; by default, that of the
            model's operations.
        sampler: samples the rows of a step; by default, that of the model's operations.
        kv_bits: bits of a quantized value, 4 or 8 (day 4.1); None for keys and values in floats.

    Raises:
        ValueError: `kv_bits` is neither 4 nor 8.
    """

    def __init__(
        self,
        model: Qwen3Model,
        blocks: BlockManager,
        attention: Callable[..., mx.array] | None = None,
        sampler: BatchSampler | None = None,
        kv_bits: int | None = None,
    ) -> None:
        self.model = model
        self.blocks = blocks
        operations = model.operations
        self.sampler = sampler_of(operations) if sampler is None else sampler
        self.mask_rows = operations.mask_rows
        sizes = model.num_hidden_layers, blocks.num_blocks, blocks.block_size
        self._store = make_kv_store(*sizes, operations, kv_bits)
        self.pool = self._store.pool
        self.attention = attention or self._store.attention()
        blocks.forget_contents()

    def run(self, output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> StepSamples:
        """Compute a step, and evaluate its samples and the pool before returning.

        Args:
            output: the step to compute.
            params: for each sequence with a final entry, by id. They have a seed unless they are greedy.

        Returns:
            The samples of the final entries, by sequence id.
        """
        if not output.entries:
            return StepSamples({}, {})
        batch = self.batch_of(output)
        sampled = self.compute(batch, output.final, params)
        mx.eval([each.arrays for each in sampled], self.pool.state)
        return read_samples(sampled)

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
        caches = [self.cache_of(layer, batch) for layer in range(self.pool.num_layers)]
        states = self.model.hidden_states(batch.token_ids, batch.positions, caches)
        if not final:
            return []
        logits = self.model.logits(states[batch.logits_indices])[:, -1]  # [final entries, V]
        return [Sampled.of(logits, final, params, self.sampler, self.mask_rows)]

    def batch_of(self, output: SchedulerOutput) -> ForwardBatch:
        """Flatten a step, for the kind of pool that this runner has."""
        return self._store.batch_of(output, self.blocks.tables)

    def cache_of(self, layer: int, batch: ForwardBatch) -> TinyKvCache:
        """Return a layer of the pool as a cache for the rows of a step."""
        return self._store.cache_of(layer, batch, self.attention)

    def release(self, sequence_id: int) -> None:
        """Do nothing: the runner holds nothing for a sequence."""

    def close(self) -> None:
        """Free the pool."""
        self.pool.release()
