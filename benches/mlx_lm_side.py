"""mlx-lm's BatchGenerator in the serving benchmark, on its own model or on this course's kernels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load_model

from scripts.run.run_log import PhaseEvent, RunLog
from tiny_llm import Qwen3Model, SamplingParams, TinyKvCache
from tiny_llm.ops.attention import Attention, Mask

HIDDEN = -1e9  # finite: padding sees nothing at all, and a softmax of -inf alone has no value


class MlxLmCache(TinyKvCache):
    """A cache of mlx-lm in this course's model.

    Args:
        cache: mlx-lm's, of a layer.
        offset: where it ends, as the model is called with it.
        mask: mlx-lm's.
    """

    def __init__(self, cache: Any, offset: int | list[int], mask: Mask) -> None:
        self.cache = cache
        self._offset = offset
        self.mask = HIDDEN * (1 - mask.astype(mx.float32)) if isinstance(mask, mx.array) else mask

    def attend(
        self, query: mx.array, key: mx.array, value: mx.array, attention: Attention, mask: Mask = None
    ) -> mx.array:
        """By the attention of the model, with mlx-lm's mask."""
        keys, values = self.cache.update_and_fetch(key, value)
        return attention(query, keys, values, mask=self.mask)

    @property
    def offset(self) -> int | list[int]:
        """Where it ended when the model was called."""
        return self._offset

    @property
    def state(self) -> list[mx.array]:
        """mlx-lm evaluates its own."""
        return []

    def release(self) -> None:
        """mlx-lm gives back its own."""


class SharedKernels:
    """This course's model as mlx-lm calls one.

    Args:
        model: whose kernels are used.
    """

    def __init__(self, model: Qwen3Model) -> None:
        self.model = model

    def make_cache(self) -> list[Any]:
        """An empty cache of mlx-lm for each layer."""
        return [KVCache() for _ in self.model.layers]

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Logits [B, L, V], computed lazily, as mlx-lm's own model gives them."""
        offset = cache[0].offset
        offsets: Any = offset.tolist() if isinstance(offset, mx.array) else offset
        mask = create_attention_mask(tokens, cache[0])
        return self.model(tokens, offsets, [MlxLmCache(layer, offsets, mask) for layer in cache])


def own_model(checkpoint: Path) -> Any:
    """The checkpoint as mlx-lm loads it."""
    return load_model(checkpoint)[0]


class MlxLmRecorder(RunLog):
    """A run of mlx-lm's generator, step by step.

    Args:
        model: its own, or `SharedKernels`.
        batch_size: most requests that decode together, and most prompts that are computed together.
        prefill_step: most tokens of one prompt in a step.
    """

    def __init__(self, model: Any, batch_size: int, prefill_step: int) -> None:
        self.generator = BatchGenerator(
            model,
            completion_batch_size=batch_size,
            prefill_batch_size=batch_size,
            prefill_step_size=prefill_step,
        )
        self._missing: dict[int, int] = {}  # tokens of the answer, by request
        self._computed: dict[int, int] = {}  # tokens of the prompt, by request
        super().__init__()

    @property
    def has_work(self) -> bool:
        """Whether a request lacks a token."""
        return bool(self._missing)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams | None = None, arrival: float | None = None
    ) -> None:
        """Add a prompt that arrived at this time, with its number of tokens in `params`."""
        assert params is not None
        assert params.max_tokens is not None
        samplers = [make_sampler(params.temperature, params.top_p)] if params.temperature else None
        (index,) = self.generator.insert([list(prompt)], max_tokens=[params.max_tokens], samplers=samplers)
        self._missing[index] = params.max_tokens
        self._computed[index] = 0
        self.record_arrival(index, arrival)

    def step(self) -> None:
        """One step of the generator."""
        start = self.seconds
        chunks, tokens = self.generator.next()
        end = self.seconds
        starts = {chunk.uid: self._computed[chunk.uid] for chunk in chunks if not chunk.end_of_prompt}
        for chunk in chunks:
            self._computed[chunk.uid] = chunk.progress[0]
        if chunks:
            computed = {index: self._computed[index] - first for index, first in starts.items()}
            computed |= {chunk.uid: 1 for chunk in chunks if chunk.end_of_prompt}
            starts |= {chunk.uid: chunk.progress[1] - 1 for chunk in chunks if chunk.end_of_prompt}
            self.record_event(PhaseEvent(self.num_steps, "prefill", start, end, computed, starts, ()))
        if tokens:
            ids = tuple(token.uid for token in tokens)
            lengths = {index: self._computed[index] for index in ids}
            event = PhaseEvent(self.num_steps, "decode", start, end, dict.fromkeys(ids, 1), lengths, ids)
            self.record_event(event)
        for token in tokens:
            self._missing[token.uid] -= 1
            if token.finish_reason is not None:
                del self._missing[token.uid]
                self.record_end(token.uid)
        self.num_steps += 1

    def close(self) -> None:
        """Give back what it holds."""
        self.generator.close()
