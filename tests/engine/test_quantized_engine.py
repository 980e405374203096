"""Engines with quantized keys and values: what a query sees depends on its position, in any schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batching import small_model
from tests.support.budget import answers_of
from tests.support.check import check_equal, check_value_error
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.fakes import FakeTokenizer, prompt_of
from tests.support.quantized_fakes import GoodDrafter, QuantizedFakeModel, continuation
from tests.support.schedules import random_qwen3
from tiny_llm import (
    BlockManager,
    Engine,
    ModelRunner,
    PrefixCachingBlockManager,
    QuantizedKvPool,
    SamplingParams,
    SchedulerConfig,
    UnlimitedBlocks,
    cache_bytes_per_token,
)
from tiny_llm.engine import default_blocks as default_module
from tiny_llm.paging.quantized_kv_pool import quantized_bytes_per_token

LONGEST = 40
endless = FakeTokenizer(eos_token_ids=[])


@dataclass(frozen=True)
class Job:
    """A request: which prompt, how much of it, how many tokens are asked for, and the step it comes in."""

    seed: int
    num_prompt_tokens: int
    num_outputs: int
    step: int
    is_aborted_at: int | None = None

    @property
    def prompt(self) -> list[int]:
        """The beginning of one of three prompts, so that many share theirs."""
        return prompt_of(self.num_prompt_tokens, self.seed)


JOBS = st.lists(
    st.builds(
        Job,
        st.integers(0, 2),
        st.integers(1, 28),
        st.integers(1, 12),
        st.integers(0, 9),
        st.none() | st.integers(1, 14),
    ),
    min_size=1,
    max_size=6,
)


def engine_of(kind: type[Engine], kv_bits: int, block_size: int, data: st.DataObject) -> Engine:
    """An engine with limits, blocks and drafts that are drawn."""
    max_num_seqs = data.draw(st.integers(1, 4))
    config = SchedulerConfig(max_num_seqs + data.draw(st.integers(0, 30)), max_num_seqs)
    spare, overcommit = data.draw(st.integers(0, 12)), data.draw(st.booleans())
    blocks = data.draw(st.sampled_from([BlockManager, PrefixCachingBlockManager]))(
        -(-LONGEST // block_size) + spare, block_size, overcommit
    )
    options: dict[str, Any] = {"kv_bits": kv_bits}
    if kind is drafting_engine:
        options["drafter"] = GoodDrafter(block_size, data.draw(st.integers(0, 9)))
    return kind(QuantizedFakeModel(kv_bits), endless, config, LONGEST, blocks, **options)


@pytest.mark.parametrize("kind", [Engine, overlapping_engine, drafting_engine])
@settings(max_examples=10)
@given(data=st.data())
def test_every_request_gets_what_it_gets_alone(kind: type[Engine], data: st.DataObject) -> None:
    kv_bits, block_size = data.draw(st.sampled_from([4, 8])), data.draw(st.integers(1, 9))
    jobs, steps, numbers = data.draw(JOBS), [], dict[int, Job]()
    with engine_of(kind, kv_bits, block_size, data) as engine:
        for step in range(1000):
            for job in (each for each in jobs if each.step == step):
                params = SamplingParams(max_tokens=job.num_outputs)
                numbers[engine.add_request(job.prompt, params)] = job
            for number, job in numbers.items():
                if job.is_aborted_at == step:
                    engine.abort(number)
            if engine.has_unfinished_requests:
                steps.append(engine.step())
            elif step > 14:
                break
    found = answers_of(steps)
    expected = {
        number: continuation(numbers[number].prompt, numbers[number].num_outputs, block_size)
        for number in found
    }
    check_equal(found, expected, f"tokens of each request, blocks of {block_size}, {kv_bits=}")
    stayed = {number for number, job in numbers.items() if job.is_aborted_at is None}
    check_equal(stayed - found.keys(), set(), "requests without an answer")


REFUSING: dict[str, Callable[[int], object]] = {
    "QuantizedKvPool": lambda kv_bits: QuantizedKvPool(1, 4, 4, kv_bits),
    "ModelRunner": lambda kv_bits: ModelRunner(small_model(), BlockManager(4, 4), kv_bits=kv_bits),
    "Engine": lambda kv_bits: Engine(
        small_model(), endless, SchedulerConfig(8, 3), 16, BlockManager(4, 4), kv_bits=kv_bits
    ),
    "with drafts": lambda kv_bits: drafting_engine(
        small_model(), endless, SchedulerConfig(8, 3), 16, BlockManager(4, 4), kv_bits=kv_bits
    ),
}


@pytest.mark.parametrize("kv_bits", [0, 2, 5, 16])
@pytest.mark.parametrize("name", REFUSING)
def test_other_numbers_of_bits_are_refused(name: str, kv_bits: int) -> None:
    REFUSING[name](8)
    with check_value_error(kv_bits=kv_bits, what=name):
        REFUSING[name](kv_bits)


def test_what_has_no_pool_or_other_heads_is_refused() -> None:
    config = SchedulerConfig(8, 3)
    with check_value_error(what="an engine without a pool"):
        Engine(small_model(), endless, config, 16, UnlimitedBlocks(), kv_bits=8)
    with check_value_error(head_dim=8, what="an engine for a model with heads of 8"):
        Engine(random_qwen3(), endless, config, 16, BlockManager(4, 4), kv_bits=8)


@pytest.mark.parametrize("name", ["num_layers", "num_blocks", "block_size"])
def test_pools_without_room_are_refused(name: str) -> None:
    sizes = {"num_layers": 1, "num_blocks": 4, "block_size": 4, name: 0}
    with check_value_error(**{name: 0}):
        QuantizedKvPool(**sizes)


@pytest.mark.parametrize("kv_bits", [4, 8])
def test_bytes_of_a_token(kv_bits: int) -> None:
    model, num_blocks = small_model(), 7
    with Engine(
        model, endless, SchedulerConfig(8, 3), 16, BlockManager(num_blocks, 16), kv_bits=kv_bits
    ) as engine:
        engine.generate([prompt_of(5)], SamplingParams(max_tokens=1))
        words = [x for x in engine.runner.pool.state if x.dtype == mx.uint32]  # type: ignore[attr-defined]
        num_bytes = sum(x.nbytes for x in words)
    expected = quantized_bytes_per_token(model.config, kv_bits)
    check_equal(num_bytes, expected * 16 * num_blocks, "bytes of the quantized blocks of 112 tokens")
    assert expected < cache_bytes_per_token(model.config, mx.float32) / 3


def test_as_many_more_blocks_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = SchedulerConfig(64, 64), small_model()
    free = 2 * 16 * 10 * cache_bytes_per_token(model.config, mx.float32)
    monkeypatch.setattr(default_module, "free_memory", lambda: free)
    floats, quantized = (default_module.default_blocks(model, config, 512, kv_bits) for kv_bits in (None, 4))
    assert isinstance(floats, BlockManager)
    assert isinstance(quantized, BlockManager)
    check_equal(floats.num_blocks, 10, "blocks of floats")
    expected = free // 2 // (16 * quantized_bytes_per_token(model.config, 4))
    check_equal(quantized.num_blocks, expected, "quantized blocks")
