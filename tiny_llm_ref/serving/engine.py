"""The engine: requests in, answers out, and a step that asks the scheduler what to compute."""

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_runtime.closable import Closable

from ..batching.answer import GenerationResult, TokenLogprobs
from ..generation.generate import Tokenizer, encode_prompt
from ..generation.sampler import SamplingParams
from ..model.qwen3 import Qwen3Model
from .block_manager import BlockManager
from .dense_runner import DenseRunner, Runner
from .given.blocks import Blocks
from .given.default_blocks import default_blocks
from .given.engine_request import EngineRequest, check_request
from .given.policy import Policy
from .given.scheduler_output import SchedulerOutput
from .model_runner import ModelRunner
from .scheduler import Scheduler, SchedulerConfig
from .sequence import Sequence


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
        self._check_open()
        request_id = self._num_added
        prompt_ids = encode_prompt(self.tokenizer, prompt)
        params = SamplingParams() if params is None else params
        check_request(prompt_ids, priority, self.vocab_size, params)
        if len(prompt_ids) > self.max_seq_len:
            raise ValueError(
                f"prompt {request_id} has {len(prompt_ids)} tokens and max_seq_len is "
                f"{self.max_seq_len}: shorten the prompt or raise max_seq_len"
            )
        most = self.max_seq_len if params.max_tokens is None else len(prompt_ids) + params.max_tokens
        sequence = Sequence(request_id, prompt_ids, priority, min(most, self.max_seq_len))
        request = EngineRequest(sequence, self.tokenizer, params)
        self.scheduler.add(sequence)
        self.requests[request_id] = request
        self._num_added += 1
        return request_id

    def step(self) -> EngineStep:
        """Compute one step; nothing is computed, and no model called, where nobody is there.

        Raises:
            ValueError: a step is under way, or the engine is closed.
        """
        if self.is_stepping:
            raise ValueError("a step is under way: the next one can begin when it has ended")
        with self._closed_on_error(), self.mid_step():
            start = self._clock()
            output = self.scheduler.schedule()
            params = {id: self.requests[id].params for id in output.final_ids}
            sampled, logprobs = self.runner.run(output, params)
            self.scheduler.complete(output, sampled)
            self.scheduler.policy.record(output, self._clock() - start)
            for request_id, token in sampled.items():
                self.requests[request_id].accept(token, logprobs.get(request_id))
            done = [self.requests[request_id] for request_id in sampled if self.requests[request_id].is_done]
            finished = tuple(request.result() for request in done)
            for request in done:
                self._forget(request.sequence.id)
            step = EngineStep(output, sampled, finished, logprobs)
            return self.without_aborted(step) if self.aborted_in_step else step

    def abort(self, request_id: int) -> bool:
        """Drop a request and release what it holds; False if it is not there, or not any more.

        While a step is under way, in a callback or another thread, `abort_in_step` does it.
        """
        self._check_open()
        if request_id not in self.requests or request_id in self.aborted_in_step:
            return False
        if self.is_stepping:
            self.abort_in_step(request_id)
            return True
        with self._closed_on_error():
            self._forget(request_id)
        return True

    def abort_in_step(self, request_id: int) -> None:
        """Note that a request leaves when the step under way has ended; until then it keeps what it holds."""
        self.aborted_in_step.add(request_id)

    def without_aborted(self, step: EngineStep) -> EngineStep:
        """The same step without what it sampled for those aborted in it, and without their results.

        They are forgotten now, unless the step was their last and they are already.
        """
        aborted, self.aborted_in_step = self.aborted_in_step, set()
        for request_id in aborted & self.requests.keys():
            self._forget(request_id)
        sampled = {
            request_id: token for request_id, token in step.sampled.items() if request_id not in aborted
        }
        logprobs = {
            request_id: each for request_id, each in step.logprobs.items() if request_id not in aborted
        }
        finished = tuple(result for result in step.finished if result.prompt_idx not in aborted)
        return EngineStep(step.scheduled, sampled, finished, logprobs)

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
        if self.requests:
            raise ValueError(f"{len(self.requests)} other requests are under way: step until they are done")
        all_params = params if isinstance(params, Items) else [params] * len(prompts)
        if len(all_params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts need as many params, got {len(all_params)}")
        try:
            for prompt, prompt_params in zip(prompts, all_params, strict=True):
                self.add_request(prompt, prompt_params)
        except BaseException:
            for request_id in list(self.requests):
                self.abort(request_id)
            raise
        finished: list[GenerationResult] = []
        with self._closed_on_error():
            while self.has_unfinished_requests:
                finished += self.step().finished
        return sorted(finished, key=lambda result: result.prompt_idx)

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

    def _forget(self, request_id: int) -> None:
        self.runner.release(request_id)
        self.scheduler.remove(request_id)
        del self.requests[request_id]
