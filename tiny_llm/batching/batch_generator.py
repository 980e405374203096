"""Continuous batching: requests join and leave at any step, prefilled in chunks and decoded together."""

from collections import deque
from collections.abc import Sequence

from kernel_runtime.closable import Closable

from ..generation.generate import Tokenizer
from ..generation.sampler import SamplingParams
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
        raise NotImplementedError("week 2 day 7 task 3: BatchGenerator.step is not written yet")

    def prefill_phase(self) -> bool:
        """Compute one chunk of the pending request, the first in the queue if there is none.

        It goes on while all slots are busy. A request that its first token ends is finished here and takes
        no slot.

        Returns:
            Whether a chunk was computed: False if nobody waits, or if the pending prefill is complete and
            waits for a slot.
        """
        raise NotImplementedError("week 2 day 7 task 3: BatchGenerator.prefill_phase is not written yet")

    def decode_phase(self) -> bool:
        """Compute one token for every occupied slot."""
        raise NotImplementedError("week 2 day 6 task 4: BatchGenerator.decode_phase is not written yet")

    def promote_phase(self) -> bool:
        """Move a finished prefill into a free slot; without one it waits, and so does the queue."""
        raise NotImplementedError("week 2 day 6 task 4: BatchGenerator.promote_phase is not written yet")

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
    raise NotImplementedError("week 2 day 7 task 3: batch_generate is not written yet")
