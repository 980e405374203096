"""Continuous batching: requests join and leave at any step, prefilled in chunks and decoded together."""

from collections import deque
from collections.abc import Sequence

from kernel_runtime.closable import Closable
from kernel_runtime.limits import check_integer

from ..generation.generate import Tokenizer
from ..generation.sampler import SamplingParams
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
        raise NotImplementedError("week 2 day 7 task 3: BatchGenerator.step is not written yet")

    def prefill_phase(self) -> bool:
        """Compute one chunk of the request in prefill. If there is none, take the first from the queue.

        Prefill continues even if all slots are busy. A request whose first token ends its answer finishes
        here and takes no slot.

        Returns:
            Whether a chunk was computed. False if no request is waiting, or if the request in prefill is
            complete and waits for a slot.
        """
        raise NotImplementedError("week 2 day 7 task 3: BatchGenerator.prefill_phase is not written yet")

    def decode_phase(self) -> bool:
        """Compute one token for every occupied slot in a single call, then sample each with its own sampler.

        A request whose answer ends leaves its slot at once and is released. Its result goes to
        `_finished`.

        Returns:
            Whether any slot was occupied. If none was, the model is not called.
        """
        raise NotImplementedError("week 2 day 6 task 4: BatchGenerator.decode_phase is not written yet")

    def promote_phase(self) -> bool:
        """Move a completely prefilled request into the first free slot.

        If no slot is free, the request waits, and so does the queue behind it.

        Returns:
            Whether a request was moved.
        """
        raise NotImplementedError("week 2 day 6 task 4: BatchGenerator.promote_phase is not written yet")

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
    raise NotImplementedError("week 2 day 7 task 3: batch_generate is not written yet")
