"""Limits of every constructor: a number that would fail in mid-step is refused when the object is made."""

from collections.abc import Callable
from typing import Any

import pytest

from http_server.config import ServerConfig
from kernel_runtime.limits import check_integer
from tests.support.fakes import FakeModel, FakeTokenizer
from tests.support.schedules import random_qwen3
from tiny_llm import (
    BatchGenerator,
    BlockManager,
    DraftModel,
    Engine,
    Fcfs,
    LatencyTarget,
    LookupDrafter,
    PagedKvPool,
    PrefixCachingBlockManager,
    Request,
    SamplingParams,
    SchedulerConfig,
)
from tiny_llm.paging.quantized_kv_pool import QuantizedKvPool

pytestmark = pytest.mark.usefixtures("on_cpu")


def engine(**settings: Any) -> Engine:
    return Engine(FakeModel(), FakeTokenizer(), blocks=BlockManager(9, 4), **settings)  # type: ignore[arg-type]


def add_request(**settings: Any) -> None:
    priority = settings.pop("priority", 0)
    engine().add_request([5, 3], SamplingParams(**settings), priority)


def server(**settings: Any) -> ServerConfig:
    return ServerConfig(("m",), SchedulerConfig(), **settings)


Make = Callable[..., Any]
INTEGERS: list[tuple[Make, str, int]] = [
    (SchedulerConfig, "max_num_batched_tokens", 1),
    (SchedulerConfig, "max_num_seqs", 1),
    (SchedulerConfig, "long_prefill_token_threshold", 1),
    (SchedulerConfig, "max_num_partial_prefills", 1),
    (SchedulerConfig, "max_num_prefill_only_tokens", 1),
    *[
        (make, name, 1)
        for make in (
            lambda **sizes: BlockManager(**{"num_blocks": 3, **sizes}),
            lambda **sizes: PrefixCachingBlockManager(**{"num_blocks": 3, **sizes}),
            lambda **sizes: PagedKvPool(**{"num_layers": 1, "num_blocks": 3, "block_size": 4, **sizes}),
            lambda **sizes: QuantizedKvPool(**{"num_layers": 1, "num_blocks": 3, "block_size": 4, **sizes}),
        )
        for name in ("num_blocks", "block_size")
    ],
    (lambda **sizes: PagedKvPool(**sizes, num_blocks=3, block_size=4), "num_layers", 1),
    (engine, "max_seq_len", 1),
    (lambda **settings: LatencyTarget(Fcfs(), 30.0, **settings), "first_budget", 1),
    (lambda **settings: LatencyTarget(Fcfs(), 30.0, **settings), "window", 16),
    (LookupDrafter, "num_drafts", 0),
    (LookupDrafter, "min_n", 1),
    (LookupDrafter, "max_n", 2),
    (lambda **settings: DraftModel(random_qwen3(), BlockManager(3), **settings), "num_drafts", 0),
    (lambda **sizes: BatchGenerator(FakeModel(), FakeTokenizer(), **sizes), "batch_size", 1),
    (lambda **sizes: BatchGenerator(FakeModel(), FakeTokenizer(), **sizes), "prefill_step", 1),
    (lambda **sizes: BatchGenerator(FakeModel(), FakeTokenizer(), **sizes), "max_seq_len", 1),
    (lambda **sizes: Request(FakeModel(), FakeTokenizer(), [5], **sizes), "prefill_max_step", 1),
    (add_request, "max_tokens", 1),
    (add_request, "top_k", 1),
    (add_request, "seed", 0),
    (add_request, "min_tokens", 0),
    (add_request, "logprobs", 0),
    (add_request, "priority", 0),
    (server, "port", 0),
    (server, "max_num_queued_reqs", 0),
    (server, "max_num_queued_tokens", 1),
    (server, "max_body_bytes", 1),
    (server, "num_speculative_tokens", 0),
]


@pytest.mark.parametrize(("make", "name", "least"), INTEGERS, ids=[name for _, name, _ in INTEGERS])
def test_what_is_no_integer_or_too_small_is_refused(make: Make, name: str, least: int) -> None:
    for wrong in (least - 1, least + 0.5, True):
        with pytest.raises(ValueError, match=name):
            make(**{name: wrong})


@pytest.mark.parametrize("name", ["body_timeout", "keepalive", "send_timeout", "timeout_graceful_shutdown"])
def test_times_that_are_no_times_are_refused(name: str) -> None:
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=name):
            server(**{name: wrong})


@pytest.mark.parametrize("kv_bits", [3, 4.0, 8.0, True])
def test_bits_that_no_kernel_has_are_refused(kv_bits: Any) -> None:
    with pytest.raises(ValueError, match="kv_bits"):
        QuantizedKvPool(1, 3, 4, kv_bits)
    model, blocks = random_qwen3(head_dim=32), BlockManager(9, 4)
    with pytest.raises(ValueError, match="bits"):
        Engine(model, FakeTokenizer(), max_seq_len=64, blocks=blocks, kv_bits=kv_bits)  # type: ignore[arg-type]


def test_integers_of_numpy_are_integers() -> None:
    import numpy as np

    check_integer("num_blocks", np.int64(3), 3)
    with pytest.raises(ValueError, match="num_blocks must be an integer"):
        check_integer("num_blocks", np.float64(3), 3)
