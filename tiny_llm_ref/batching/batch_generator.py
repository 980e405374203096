"""Continuous batching: requests join and leave at any step, prefilled in chunks and decoded together."""

from collections import deque
from collections.abc import Sequence

import mlx.core as mx

from kernel_runtime.closable import Closable
from kernel_runtime.limits import check_integer

from ..generation.generate import Tokenizer, to_logprobs
from ..generation.sampler import SamplingParams, token_id
from ..model.dense_kv_cache import BatchingKvCache
from ..model.positions import check_max_seq_len
from ..model.qwen3 import Qwen3Model
from .answer import GenerationResult
from .request import Request


class BatchGenerator(Closable):
    """Serve requests with one model. Each step prefills a chunk of one and decodes a token of many.

    Args:
        model: called with [1, L] for a chunk, and with [active slots, 1] for a decode.
        tokenizer: as for `Request`.
        batch_size: number of slots, which is how many requests can decode together.
        prefill_step: largest number of prompt tokens per step.
        max_seq_len: largest number of tokens in a request, prompt and answer together.

    Raises:
        ValueError: `batch_size`, `prefill_step` or `max_seq_len` is no integer or below 1; or `max_seq_len`
            is above the model's `max_position_embeddings`.

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
        check_integer("batch_size", batch_size, 1)
        check_integer("prefill_step", prefill_step, 1)
        check_max_seq_len(max_seq_len, model)
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
        """Add a prompt to the end of the queue. Requests are numbered from 0 in the order they come.

        Raises:
            ValueError: as for `Request`, or the generator is closed. Other requests are not affected, and a
                refused one takes no number.
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
        """Run the three phases once each (prefill, decode, promote) and return the requests that finished."""
        self.prefill_phase()
        self.decode_phase()
        self.promote_phase()
        return self.take_finished()

    def prefill_phase(self) -> bool:
        """Compute one chunk of the request in prefill. If there is none, take the first from the queue.

        Prefill continues even if all slots are busy. A request whose first token ends its answer finishes
        here and takes no slot.

        Returns:
            Whether a chunk was computed. False if no request is waiting, or if the request in prefill is
            complete and waits for a slot.
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
        """Compute one token for every occupied slot in a single call, then sample each with its own sampler.

        A request whose answer ends leaves its slot at once and is released. Its result goes to
        `_finished`.

        Returns:
            Whether any slot was occupied. If none was, the model is not called.
        """
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
        """Move a completely prefilled request into the first free slot.

        If no slot is free, the request waits, and so does the queue behind it.

        Returns:
            Whether a request was moved.
        """
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
        """Return the requests that finished since the last call, in the order in which they finished."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Release every cache and drop all unfinished requests."""
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
        """Slot and request for each row of the batch."""
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
    """Continue many prompts. The other arguments are those of `BatchGenerator`.

    Args:
        params: how to sample: one for all prompts, or a sequence with one per prompt; greedy by default.

    Returns:
        One result per prompt, in the order of the prompts.

    Raises:
        ValueError: as for `Request`, or `len(params)` is not `len(prompts)`. Nothing is computed then.
    """
    all_params = params if isinstance(params, Sequence) else [params] * len(prompts)
    if len(all_params) != len(prompts):
        raise ValueError(f"params must have one entry per prompt: got {len(all_params)} for {len(prompts)}")
    results: list[GenerationResult] = []
    with BatchGenerator(model, tokenizer, batch_size, prefill_step, max_seq_len) as generator:
        for prompt, prompt_params in zip(prompts, all_params, strict=True):
            generator.submit(prompt, prompt_params)
        while generator.has_work:
            results += generator.step()
    return sorted(results, key=lambda result: result.prompt_idx)
