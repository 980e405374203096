"""The engine: requests in, answers out, and a step that asks the scheduler what to compute."""

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_runtime.closable import Closable

from ..batching.answer import GenerationResult, TokenLogprobs
from ..generation.generate import Tokenizer
from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from .block_manager import BlockManager
from .dense_runner import DenseRunner, Runner
from .given.blocks import Blocks
from .given.default_blocks import default_blocks
from .given.engine_request import EngineRequest
from .given.policy import Policy
from .given.scheduler_output import SchedulerOutput
from .model_runner import ModelRunner
from .scheduler import Scheduler, SchedulerConfig


@dataclass(frozen=True)
class EngineStep:
    """What a step computed, the token it sampled for each id, and the requests that ended in it.

    `logprobs` are those of the tokens whose requests ask for them, by id.
    """

    scheduled: SchedulerOutput
    sampled: Mapping[int, int]
    finished: tuple[GenerationResult, ...]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)


class Engine(Closable):
    """Serves requests with one model; each step computes what fits in one token budget.

    Args:
        model: as for `ModelRunner`, or for `DenseRunner` where there is no pool.
        tokenizer: encodes prompts, decodes answers and names the end-of-text ids.
        config: the limits of a step; unless given, the defaults, and 512 tokens while no sequence decodes.
        max_seq_len: most tokens of a request, prompt and answer together.
        blocks: of the pool that holds keys and values; `default_blocks` unless given. With
            `UnlimitedBlocks`, each request has its own growing cache.
        policy: as for `Scheduler`.
        clock: seconds, from any start.

    Raises:
        ValueError: `max_seq_len` is below 1.

    Attributes:
        requests: those that are not finished, by id.
        is_stepping: whether a step is under way.
        aborted_in_step: the ids of those that are to leave when the step under way has ended.

    While a step is under way, in a callback or another thread, requests may be added and aborted.
    An error or Ctrl-C in a step closes the engine: all caches are released, and every call but `close`
    raises ValueError from then on.
    """

    def __init__(
        self,
        model: Qwen3Model,
        tokenizer: Tokenizer,
        config: SchedulerConfig | None = None,
        max_seq_len: int = 512,
        blocks: Blocks | None = None,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len}")
        config = SchedulerConfig(max_num_prefill_only_tokens=512) if config is None else config
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        blocks = default_blocks(model, config, max_seq_len) if blocks is None else blocks
        self.scheduler = Scheduler(config, blocks, policy)
        self.runner: Runner = (
            ModelRunner(model, blocks) if isinstance(blocks, BlockManager) else DenseRunner(model)
        )
        self.vocab_size = model.config.vocab_size
        self.requests: dict[int, EngineRequest] = {}
        self._clock = clock
        self._num_added = 0
        self.is_stepping = False
        self.aborted_in_step: set[int] = set()

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.requests)

    def add_request(
        self, prompt: str | Items[int], params: SamplingParams | None = None, priority: int = 0
    ) -> int:
        """Let a prompt wait for its turn; returns its id, counted from 0.

        Args:
            prompt: text, or token ids.
            params: how it is sampled and when it ends; greedy unless given.
            priority: 0 for the most urgent; what it means is the policy's to say.

        Raises:
            ValueError: the prompt is empty, its `num_tokens` are more than `max_seq_len`, it could never run,
                or is refused by `check_request` as is the priority; or the engine is closed. The other
                requests are not affected.
        """
        raise NotImplementedError("week 3 day 1 task 5: Engine.add_request is not written yet")

    def step(self) -> EngineStep:
        """Compute one step; nothing is computed, and no model called, where nobody is there.

        Raises:
            ValueError: a step is under way, or the engine is closed.
        """
        raise NotImplementedError("week 3 day 1 task 5: Engine.step is not written yet")

    def abort(self, request_id: int) -> bool:
        """Drop a request and release what it holds; False if it is not there, or not any more.

        While a step is under way, in a callback or another thread, `abort_in_step` does it.
        """
        raise NotImplementedError("week 3 day 1 task 5: Engine.abort is not written yet")

    def abort_in_step(self, request_id: int) -> None:
        """Note that a request leaves when the step under way has ended; until then it keeps what it holds."""
        raise NotImplementedError("week 3 day 5 task 6: Engine.abort_in_step is not written yet")

    def without_aborted(self, step: EngineStep) -> EngineStep:
        """The same step without what it sampled for those aborted in it, and without their results.

        They are forgotten now, unless the step was their last and they are already.
        """
        raise NotImplementedError("week 3 day 5 task 6: Engine.without_aborted is not written yet")

    def generate(
        self,
        prompts: Items[str | Items[int]],
        params: SamplingParams | Items[SamplingParams] | None = None,
    ) -> list[GenerationResult]:
        """Continue many prompts to their ends.

        Args:
            prompts: each text, or token ids.
            params: how to sample: for all prompts, or one for each; greedy unless given.

        Returns:
            One result a prompt, in the order of the prompts.

        Raises:
            ValueError: a prompt is refused; there are not as many params, `len(params)`, as prompts,
                `len(prompts)`; or `num_others` are under way, whose results nobody would get. Nothing is
                computed, and no prompt stays.
        """
        raise NotImplementedError("week 3 day 1 task 5: Engine.generate is not written yet")

    def close(self) -> None:
        """Release every cache and drop every request that is not finished."""
        self.is_closed = True
        self.runner.close()
        for sequence_id in list(self.scheduler.sequences):
            self.scheduler.remove(sequence_id)
        self.requests.clear()

    @contextmanager
    def mid_step(self) -> Iterator[None]:
        """A step is under way within the block."""
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False
