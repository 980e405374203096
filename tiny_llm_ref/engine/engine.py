"""The engine: requests in, answers out, one scheduled step at a time."""

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_runtime.closable import Closable

from ..batching.answer import GenerationResult, TokenLogprobs
from ..generation.generate import Tokenizer, encode_prompt
from ..generation.sampler import SamplingParams
from ..model.positions import check_max_seq_len
from ..model.qwen3 import Qwen3Model
from ..scheduling.blocks import Blocks
from ..scheduling.policy import Policy
from ..scheduling.scheduler import Scheduler, SchedulerConfig
from ..scheduling.scheduler_output import SchedulerOutput
from ..scheduling.sequence import Sequence
from .default_blocks import default_blocks, make_runner
from .engine_request import EngineRequest, check_request
from .execution import Computed, MakeExecution
from .in_turn import InTurn


@dataclass(frozen=True)
class EngineStep:
    """The result of a step: its entries, the sampled tokens by request id, and the requests that finished.

    `logprobs` holds the log-probabilities, by id, for the requests that asked for them. `accepted` holds the
    drafts that came before the sampled tokens (day 3.6).
    """

    scheduled: SchedulerOutput
    sampled: Mapping[int, int]
    finished: tuple[GenerationResult, ...]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    accepted: Mapping[int, Items[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, computed: Computed, accepted: Mapping[int, Items[int]], finished: tuple[GenerationResult, ...]
    ) -> "EngineStep":
        """Describe a step by what was computed, what each request accepted of it, and what finished."""
        return cls(
            computed.output,
            {id: tokens[-1] for id, tokens in accepted.items()},
            finished,
            {id: each[len(accepted[id]) - 1] for id, each in computed.logprobs.items() if each},
            {id: tokens[:-1] for id, tokens in accepted.items() if len(tokens) > 1},
        )


class Engine(Closable):
    """Serve requests with one model. Each step computes what fits in one token budget.

    Args:
        model: as for `ModelRunner`, or for `DenseRunner` if there is no pool.
        tokenizer: encodes prompts, decodes answers and lists the end-of-text ids.
        config: the limits of a step; by default, those of `SchedulerConfig` and 512 tokens while no sequence
            decodes.
        max_seq_len: largest number of tokens in a request, prompt and answer together.
        blocks: the blocks of the pool that stores keys and values; `default_blocks` by default. With
            `UnlimitedBlocks`, each request has its own growing cache.
        policy: as for `Scheduler`.
        clock: returns seconds, counted from any start.
        kv_bits: bits of a quantized value, 4 or 8; quantized keys have 8 (day 4.1). None for floats.
        execution: makes what computes the steps; in turn by default.

    Raises:
        ValueError: `max_seq_len` is no integer, below 1 or above the model's `max_position_embeddings`;
            `kv_bits` is neither 4 nor 8; or it is given, but the `blocks` belong to no pool or the model's
            `head_dim` is not a multiple of 32.

    Attributes:
        requests: the unfinished requests, by id.
        num_added: number of requests added so far, which is the id of the next one.
        is_stepping: whether a step is under way.
        aborted_in_step: ids of the requests that leave at the end of the step under way.

    A callback or another thread may add and abort requests while a step is under way.
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
        kv_bits: int | None = None,
        execution: MakeExecution = InTurn,
    ) -> None:
        check_max_seq_len(max_seq_len, model)
        config = SchedulerConfig(max_num_prefill_only_tokens=512) if config is None else config
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        blocks = default_blocks(model, config, max_seq_len, kv_bits) if blocks is None else blocks
        self.scheduler = Scheduler(config, blocks, policy)
        self.runner = make_runner(model, blocks, kv_bits)
        self.execution = execution(self.scheduler, self.runner, clock)
        self.vocab_size = model.config.vocab_size
        self.requests: dict[int, EngineRequest] = {}
        self.num_added = 0
        self.is_stepping = False
        self.aborted_in_step: set[int] = set()

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.requests)

    def add_request(
        self, prompt: str | Items[int], params: SamplingParams | None = None, priority: int = 0
    ) -> int:
        """Add a request to the waiting ones and return its id. Ids count from 0.

        Args:
            prompt: text, or token ids.
            params: how to sample, and when to end; greedy by default.
            priority: 0 for the most urgent. The policy decides what priorities mean.

        Raises:
            ValueError: the prompt is empty; its `num_tokens` exceed `max_seq_len`; the request could not run
                even alone; `check_request` refuses it; or the engine is closed. Other requests are not
                affected, and a refused one takes no id.
        """
        self._check_open()
        request_id = self.num_added
        prompt_ids = encode_prompt(self.tokenizer, prompt)
        params = SamplingParams() if params is None else params
        check_request(prompt_ids, priority, self.vocab_size, params)
        if len(prompt_ids) > self.max_seq_len:
            raise ValueError(
                f"prompt {request_id} has {len(prompt_ids)} tokens, but max_seq_len is "
                f"{self.max_seq_len}: shorten the prompt or raise max_seq_len"
            )
        most = self.max_seq_len if params.max_tokens is None else len(prompt_ids) + params.max_tokens
        sequence = Sequence(request_id, prompt_ids, priority, min(most, self.max_seq_len))
        request = EngineRequest(sequence, self.tokenizer, params)
        self.scheduler.add(sequence)
        self.requests[request_id] = request
        self.num_added += 1
        return request_id

    def step(self) -> EngineStep:
        """Compute one step. If there are no requests, don't call the model.

        Raises:
            ValueError: a step is under way, or the engine is closed.
        """
        if self.is_stepping:
            raise ValueError("a step is under way: wait until it has ended")
        with self._closed_on_error(), self.mid_step():
            computed = self.execution.compute(self.requests)
            accepted = {
                id: self.requests[id].accept_all(tokens, computed.logprobs.get(id, ()))
                for id, tokens in computed.token_ids.items()
            }
            self.execution.complete(computed, accepted)
            done = [self.requests[request_id] for request_id in accepted if self.requests[request_id].is_done]
            finished = tuple(request.result() for request in done)
            for request in done:
                self._forget(request.sequence.id)
            step = EngineStep.of(computed, accepted, finished)
            return self.without_aborted(step) if self.aborted_in_step else step

    def abort(self, request_id: int) -> bool:
        """Drop a request and release what it holds: `_forget` it.

        If a callback or another thread calls this while a step is under way, use `abort_in_step` instead.

        Returns:
            Whether it was unfinished. False if it is unknown, already finished or already aborted.

        Raises:
            ValueError: the engine is closed.
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
        """Note that a request leaves at the end of the step under way. Until then it keeps what it holds."""
        self.aborted_in_step.add(request_id)

    def without_aborted(self, step: EngineStep) -> EngineStep:
        """Return the step without the samples and results of requests that were aborted in it.

        Forget these requests now, unless they finished in this step and are already forgotten.
        """
        aborted, self.aborted_in_step = self.aborted_in_step, set()
        for request_id in aborted & self.requests.keys():
            self._forget(request_id)
        sampled = {id: token for id, token in step.sampled.items() if id not in aborted}
        finished = tuple(result for result in step.finished if result.prompt_idx not in aborted)
        logprobs = {id: each for id, each in step.logprobs.items() if id not in aborted}
        accepted = {id: drafts for id, drafts in step.accepted.items() if id not in aborted}
        return EngineStep(step.scheduled, sampled, finished, logprobs, accepted)

    def generate(
        self,
        prompts: Items[str | Items[int]],
        params: SamplingParams | Items[SamplingParams] | None = None,
    ) -> list[GenerationResult]:
        """Continue many prompts until all answers have ended.

        Args:
            prompts: text or token ids each.
            params: how to sample: one for all prompts, or a sequence with one per prompt; greedy by default.

        Returns:
            One result per prompt, in the order of the prompts.

        Raises:
            ValueError: `add_request` refuses a prompt; `len(params)` is not `len(prompts)`; or the engine
                still has `num_others` unfinished requests, whose results would be lost. Nothing is computed
                then, and none of the prompts stays in the engine.
        """
        if self.requests:
            raise ValueError(
                f"{len(self.requests)} other requests are unfinished: call step until they are done"
            )
        all_params = params if isinstance(params, Items) else [params] * len(prompts)
        if len(all_params) != len(prompts):
            raise ValueError(
                f"params must have one entry per prompt: got {len(all_params)} for {len(prompts)} prompts"
            )
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

    def restore(self, request: EngineRequest) -> None:
        """Take over an unfinished request of an engine that was closed. It keeps its id and its answer.

        All of its tokens are computed again, including the sampled ones. The closed engine may have failed in
        the middle of a step, so make the sequence's tokens those of the prompt and of the answer.

        Raises:
            ValueError: the engine is closed, or it has a request of this id already.
        """
        self._check_open()
        sequence = request.sequence
        sequence.token_ids[sequence.num_prompt_tokens :] = request.token_ids
        sequence.num_computed_tokens = 0
        self.scheduler.add(sequence)
        self.requests[sequence.id] = request

    def close(self) -> None:
        """Release every cache and drop all unfinished requests."""
        self.is_closed = True
        self.execution.close()
        self.runner.close()
        for sequence_id in list(self.scheduler.sequences):
            self.scheduler.remove(sequence_id)
        self.requests.clear()

    @contextmanager
    def mid_step(self) -> Iterator[None]:
        """Mark a step as under way within the block."""
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False

    def _forget(self, request_id: int) -> None:
        self.runner.release(request_id)
        self.execution.release(request_id)
        if request_id in self.scheduler.sequences:  # steps that overlap remove it when its last token is due
            self.scheduler.remove(request_id)
        del self.requests[request_id]
