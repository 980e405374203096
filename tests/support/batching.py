"""What the tests of the caching and batching days share: filled caches, a small real model, time limits."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from accelerated.accelerate import engine_operations
from scripts.hardware.memory import memory_use
from tests.support.check import check_equal, normal
from tests.support.checkpoints import Variant, build
from tests.support.fakes import VOCAB_SIZE, FakeModel
from tiny_llm import (
    BatchGenerator,
    BatchingKvCache,
    ModelConfig,
    Qwen3Model,
    Request,
    SamplingParams,
    TinyKvFullCache,
)
from tiny_llm.generation.generate import to_logprobs
from tiny_llm.model.loader import Tensors, build_model

HEADS, DIM = 2, 5


def keys_and_values(
    L: int, seed: int, B: int = 1, H: int = HEADS, D: int = DIM, dtype: mx.Dtype = mx.float32
) -> tuple[mx.array, mx.array]:
    """A key and a value [B, H, L, D] that have nothing in common."""
    return normal(B, H, L, D, seed=2 * seed, dtype=dtype), normal(B, H, L, D, seed=2 * seed + 1, dtype=dtype)


def cache_of(L: int, seed: int, **kwargs: int | mx.Dtype) -> TinyKvFullCache:
    """One layer's cache that holds L tokens."""
    filled = TinyKvFullCache()
    filled.update_and_fetch(*keys_and_values(L, seed, **kwargs))
    return filled


@cache
def small_model(vocab_size: int = VOCAB_SIZE) -> Qwen3Model:
    """A Qwen3 of three layers with random weights."""
    variant = Variant("small", "qwen3", {"vocab_size": vocab_size, "hidden_size": 96})
    config = ModelConfig.from_dict(variant.config)  # before mlx-lm is imported, which takes a second
    weights = dict(tree_flatten(build(variant).parameters()))
    model = build_model(config, Tensors(weights))
    model.operations = engine_operations(mx.float32)
    return model


def prefill(request: Request) -> None:
    """Compute a whole prompt and sample its first token, as a later day does chunk by chunk."""
    logits = request.model(mx.array([request.prompt_ids]), 0, request.cache, logits_to_keep=1)
    token = request.sampler(to_logprobs(logits)).item()
    request.offset = len(request.prompt_ids)
    request.accept(int(token))


def submit_prefilled(
    generator: BatchGenerator, prompt: Sequence[int], params: SamplingParams | None = None
) -> Request:
    """Submit a prompt and make it the pending request, its prefill done."""
    request = generator.submit(prompt, params)
    generator.waiting.remove(request)
    prefill(request)
    generator.prefilling = request
    return request


SAMPLED: dict[str, list[dict[str, Any]]] = {
    "one each": [
        {"temperature": 1.5, "seed": 1, "max_tokens": 8},
        {"max_tokens": 6},
        {"temperature": 3.0, "top_k": 30, "seed": 2, "max_tokens": 7},
    ],
    "one for all": [{"temperature": 2.0, "seed": 7, "max_tokens": 6}],
}
"""Parameters of three prompts."""


def length(num_tokens: int) -> SamplingParams:
    """Greedy, and so many tokens."""
    return SamplingParams(max_tokens=num_tokens)


def sampled_alone(prompt: Sequence[int], params: SamplingParams, num_tokens: int) -> list[int]:
    """What the fake model's request gets when it runs alone, without any cache."""
    model, sampler, tokens = FakeModel(), params.make_sampler(), list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(sampler(to_logprobs(model(mx.array([tokens]), logits_to_keep=1))).item()))
    return tokens[len(prompt) :]


def check_all_released(model: FakeModel, generator: BatchGenerator) -> None:
    """Fail unless the generator is closed and no cache of it or of its requests holds anything."""
    __tracebackhide__ = True
    check_equal(generator.is_closed, True, "is_closed of the generator")
    check_equal(generator.has_work, False, "has_work of the generator")
    check_released(model.caches, "caches of the requests, two layers each, that still hold keys")
    check_released(generator.cache, "layers of the slots' cache that still hold keys")


def check_released(layers: Sequence[TinyKvFullCache | BatchingKvCache], what: str) -> None:
    """Fail unless no cache of a layer holds anything."""
    __tracebackhide__ = True
    check_equal([index for index, layer in enumerate(layers) if layer.state], [], what)


@contextmanager
def ends_within(seconds: float = 20) -> Iterator[None]:
    """Fail, instead of hanging, when the block computes for longer; other programs do not count."""

    def give_up(number: int, frame: FrameType | None) -> None:
        pytest.fail(
            f"no end after {seconds} s of computing: "
            "a loop makes no progress, or each turn takes longer than the one before"
        )

    before = signal.signal(signal.SIGPROF, give_up)
    # Again and again: the first error may be raised inside a callback that drops it.
    timer_before = signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *timer_before)
        signal.signal(signal.SIGPROF, before)


def peak_bytes(compute: Callable[[], object]) -> int:
    """The most memory that a computation held at once, beyond what was held before it."""
    with memory_use(reuses_buffers=False) as memory:
        compute()
    return memory.peak
