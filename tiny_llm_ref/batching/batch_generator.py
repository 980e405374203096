"""Continuous batching: requests join and leave at any step, prefilled in chunks and decoded together."""

from collections import deque
from collections.abc import Sequence

import mlx.core as mx

from kernel_runtime.closable import Closable

from ..generation.generate import Tokenizer, to_logprobs
from ..generation.sampler import SamplingParams, token_id
from ..model.dense_kv_cache import BatchingKvCache
from ..model.qwen3 import Qwen3Model
from .answer import GenerationResult
from .request import Request


class BatchGenerator(Closable):
    """Serves requests with one model: each step prefills a chunk of one and decodes a token of many.

    Args:
        model: called for a chunk as [1, L], for a decode as [active slots, 1].
        tokenizer: as for `Request`.
        batch_size: number of slots, the most requests that decode together.
        prefill_step: most prompt tokens a step computes.
        max_seq_len: most tokens of a request, prompt and answer together.

    An error or Ctrl-C in a phase closes the generator: every cache is released, and `submit` and the
    phases raise ValueError from then on.
    """

    def __init__(
        self,
        model: Qwen3Model,
        tokenizer: Tokenizer,
        batch_size: int = 5,
        prefill_step: int = 128,
        max_seq_len: int = 512,
    ) -> None:
        for name, value in (
            ("batch_size", batch_size),
            ("prefill_step", prefill_step),
            ("max_seq_len", max_seq_len),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.model = model
        self.tokenizer = tokenizer
        self.prefill_step = prefill_step
        self.max_seq_len = max_seq_len
        self.waiting: deque[Request] = deque()
        self.prefilling: Request | None = None
        self.slots: list[Request | None] = [None] * batch_size
        self.cache = [BatchingKvCache(batch_size, max_seq_len) for _ in range(model.num_hidden_layers)]
        self._num_submitted = 0
        self._finished: list[GenerationResult] = []

    def submit(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Request:
        """Queue a prompt behind those that wait; requests are numbered from 0 in this order.

        Raises:
            ValueError: as for `Request`, or the generator is closed; the other requests are not affected.
        """
        self._check_open()
        request = Request(
            self.model,
            self.tokenizer,
            prompt,
            self.prefill_step,
            self._num_submitted,
            self.max_seq_len,
            params,
        )
        self._num_submitted += 1
        self.waiting.append(request)
        return request

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.prefilling is not None or any(self.slots)

    def step(self) -> list[GenerationResult]:
        """Prefill, decode, promote, in this order and once each; return what finished in them."""
        self.prefill_phase()
        self.decode_phase()
        self.promote_phase()
        return self.take_finished()

    def prefill_phase(self) -> bool:
        """Compute one chunk of the pending request, the first in the queue if there is none.

        It goes on while all slots are busy. A request that its first token ends is finished here and takes
        no slot.

        Returns:
            Whether a chunk was computed: False if nobody waits, or if the pending prefill is complete and
            waits for a slot.
        """
        with self._closed_on_error():
            if self.prefilling is None and self.waiting:
                self.prefilling = self.waiting.popleft()
            request = self.prefilling
            if request is None or request.is_prefill_done:
                return False
            request.try_prefill()
            if request.is_done:
                self.prefilling = None
                self._finish(request)
            return True

    def decode_phase(self) -> bool:
        """Compute one token for every occupied slot."""
        with self._closed_on_error():
            active = self._active()
            if not active:
                return False
            next_tokens = mx.array([[request.next_token] for _, request in active])
            offsets = [request.offset for _, request in active]
            logprobs = to_logprobs(self.model(next_tokens, offsets, self.cache))
            sampled = [request.sampler(logprobs[row : row + 1]) for row, (_, request) in enumerate(active)]
            mx.eval(sampled, [layer.state for layer in self.cache])
            for (slot, request), token in zip(active, sampled, strict=True):
                request.decode_done(token_id(token))
                if request.is_done:
                    self._free(slot)
                    self._finish(request)
            return True

    def promote_phase(self) -> bool:
        """Move a finished prefill into a free slot; without one it waits, and so does the queue."""
        with self._closed_on_error():
            request = self.prefilling
            if request is None or not request.is_prefill_done or None not in self.slots:
                return False
            slot = self.slots.index(None)
            for layer, prefilled in zip(self.cache, request.cache, strict=True):
                layer.add_request(prefilled, slot)
            mx.eval([layer.state for layer in self.cache])
            request.release()
            self.slots[slot] = request
            self.prefilling = None
            return True

    def take_finished(self) -> list[GenerationResult]:
        """The requests finished since the last call, in the order they finished."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Release every cache and drop every request that is not finished."""
        self.is_closed = True
        for request in [*self.waiting, self.prefilling, *self.slots]:
            if request is not None:
                request.release()
        for layer in self.cache:
            layer.release()
        self.waiting.clear()
        self.prefilling = None
        self.slots = [None] * len(self.slots)

    def _active(self) -> list[tuple[int, Request]]:
        """Slot and request of each row of the batch."""
        occupied = ((slot, self.slots[slot]) for slot in self.cache[0].active_slots)
        return [(slot, request) for slot, request in occupied if request is not None]

    def _free(self, slot: int) -> None:
        for layer in self.cache:
            layer.remove_request(slot)
        self.slots[slot] = None

    def _finish(self, request: Request) -> None:
        request.release()
        self._finished.append(request.result())


def batch_generate(
    model: Qwen3Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int = 128,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
) -> list[GenerationResult]:
    """Continue many prompts; see `BatchGenerator` for the arguments.

    Args:
        params: how to sample: for all prompts, or one for each; greedy unless given.

    Returns:
        One result a prompt, in the order of the prompts.

    Raises:
        ValueError: as for `Request`, or there are not as many params, `len(params)`, as prompts,
            `len(prompts)`; nothing is computed.
    """
    all_params = params if isinstance(params, Sequence) else [params] * len(prompts)
    if len(all_params) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many params, got {len(all_params)}")
    results: list[GenerationResult] = []
    with BatchGenerator(model, tokenizer, batch_size, prefill_step, max_seq_len) as generator:
        for prompt, prompt_params in zip(prompts, all_params, strict=True):
            generator.submit(prompt, prompt_params)
        while generator.has_work:
            results += generator.step()
    return sorted(results, key=lambda result: result.prompt_idx)
