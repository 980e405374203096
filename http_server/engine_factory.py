"""Make the engine that serves, once at the start and again after a failed step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tiny_llm.engine.default_blocks import default_blocks
from tiny_llm.engine.engine import Engine
from tiny_llm.engine.execution import MakeExecution
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.engine.memory import check_memory, pool_bytes
from tiny_llm.engine.overlapped import overlapped
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.model.qwen3 import Qwen3Model
from tiny_llm.ranks.guarded import guarded
from tiny_llm.ranks.leading_model import LeadingModel
from tiny_llm.scheduling.block_manager import BlockManager
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.scheduling.observed_cache import CacheObserver, observe
from tiny_llm.scheduling.policy import Fcfs, Policy
from tiny_llm.scheduling.prefix_cache import PrefixCachingBlockManager
from tiny_llm.scheduling.priority import Priority
from tiny_llm.scheduling.scheduler import SchedulerConfig
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager
from tiny_llm.speculation.with_drafts import with_drafts

from .speculation import DrafterFactory

RESTORED_PER_COMPUTED = 8
"""How many tokens a step may restore for each that it may compute; both then take about as long."""
ModelAndTokenizer = tuple[Qwen3Model, Tokenizer]
WATERMARK = 0.1
"""Fraction of the pool that admissions leave for running requests to grow, if they overcommit."""


@dataclass
class EngineFactory:
    """Called in the engine's thread. The model is loaded by the first call only.

    Args:
        load: loads a model and its tokenizer.
        config: the limits of a step.
        max_model_len: largest number of tokens in a request; None for what the model supports.
        num_blocks: blocks of the pool; None for as many as requests can use, if they fit in memory.
        block_size: tokens per block.
        prefix_caching: whether to keep the blocks of finished requests for later prompts.
        policy: which requests go first.
        make_drafter: makes where drafts come from; None for no speculation.
        kv_bits: bits of a quantized value, 4 or 8; None for keys and values in floats.
        overcommit: whether to admit a request by the blocks that it needs now, and preempt when blocks run
            out, instead of reserving room for its longest answer.
        observer: is told what the prefix cache of each engine holds; None for no one.
        kept: keeps blocks in files when the prefix cache evicts them; None for no files.
    """

    load: Callable[[], ModelAndTokenizer]
    config: SchedulerConfig
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    make_drafter: DrafterFactory | None = None
    kv_bits: int | None = None
    overcommit: bool = False
    observer: CacheObserver | None = None
    kept: KeptBlocks | None = None
    _loaded: ModelAndTokenizer | None = field(default=None, init=False)

    def __call__(self) -> Engine:
        """Make an engine with empty caches. If it leads other ranks, its steps are timed (day 4.3).

        Raises:
            ValueError: the model does not support `max_model_len`; the pool has too few blocks for it, or
                more than fit in memory; or the draft model has another tokenizer.
        """
        if self._loaded is None:
            self._loaded = self.load()
        model, tokenizer = self._loaded
        most = model.config.max_position_embeddings
        max_model_len = most if self.max_model_len is None else self.max_model_len
        if not 1 <= max_model_len <= most:
            raise ValueError(
                f"max_model_len must be from 1 to {most}, which the model supports, got {max_model_len}"
            )
        blocks = self._blocks(model, max_model_len)
        policy: Policy = Priority() if self.policy == "priority" else Fcfs()
        execution = self._execution(model, tokenizer, blocks, max_model_len)
        if self.kept is not None:
            execution = self.kept.execution(execution)
        if isinstance(model, LeadingModel):
            execution = guarded(execution, model.watchdog)
        return Engine(
            model,
            tokenizer,
            self.config,
            max_model_len,
            blocks,
            policy,
            kv_bits=self.kv_bits,
            execution=execution,
        )

    def _execution(
        self, model: Qwen3Model, tokenizer: Tokenizer, blocks: Blocks, max_model_len: int
    ) -> MakeExecution:
        """Steps that overlap, except those with drafts."""
        if self.make_drafter is None:
            return overlapped
        if not isinstance(blocks, BlockManager):
            raise ValueError(
                "drafts need a pool of blocks, which this model does not support: turn speculation off"
            )
        num_bytes = pool_bytes(model, blocks.num_blocks * blocks.block_size, self.kv_bits)
        drafter = self.make_drafter(model, tokenizer, blocks, num_bytes, max_model_len)
        return with_drafts(drafter, overlap=True)

    def _blocks(self, model: Qwen3Model, max_model_len: int) -> Blocks:
        number, size = self.num_blocks, self.block_size
        if number is None:
            blocks = default_blocks(model, self.config, max_model_len, self.kv_bits)
            if not isinstance(blocks, BlockManager):
                return blocks
            number = -(-blocks.num_blocks * blocks.block_size // size)
        if number * size < max_model_len:
            raise ValueError(
                f"the pool has {number} blocks of {size} tokens, too few for a request of {max_model_len}: "
                "raise num_gpu_blocks_override or lower max_model_len"
            )
        check_memory(number, pool_bytes(model, number * size, self.kv_bits))
        sizes = number, size, self.overcommit, WATERMARK if self.overcommit else 0.0
        made: BlockManager
        if self.kept is not None:
            most = max(1, self.config.max_num_batched_tokens // size)
            made = TieredBlockManager(*sizes, self.kept.files.load, RESTORED_PER_COMPUTED * most)
        else:
            made = PrefixCachingBlockManager(*sizes) if self.prefix_caching else BlockManager(*sizes)
        if self.observer is not None and isinstance(made, PrefixCachingBlockManager):
            observe(made, self.observer)
        return made
