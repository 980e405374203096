"""What every function of one kind refuses, each from one table."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest

from tests.support.batching import small_model
from tests.support.check import check_equal, check_value_error, normal
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.fakes import prompt_of
from tests.support.ragged import output_of
from tests.support.schedules import IdTokenizer, random_qwen3
from tiny_llm import (
    BatchingKvCache,
    BlockManager,
    Engine,
    ForwardBatch,
    GenerationResult,
    ModelConfig,
    PagedKvPool,
    QuantizedKvPool,
    Qwen3MultiHeadAttention,
    RoPE,
    Sequence,
    SimpleMultiHeadAttention,
    TinyKvCache,
    TinyKvFullCache,
    batch_generate,
    flash_attention,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from tiny_llm.engine.dense_runner import RowKvCaches
from tiny_llm.kernels.dispatch_attention import (
    dispatch_attention,
    flash_attention_cpu,
)
from tiny_llm.kernels.gpu_operations import flash_attention_gpu
from tiny_llm.ops.flash_attention import attend_queries, block_mask
from tiny_llm.paging.forward_batch import RaggedKvCache
from tiny_llm.paging.paged_kv_cache import PagedKvCache
from tiny_llm.paging.quantized_batch import QuantizedBatch, QuantizedKvCache
from tiny_llm.scheduling.block_manager import BlockTable

CONFIG = ModelConfig("llama", 64, 1, 1, 4, 2, 16, 1, 10)


def qkv(D: int = 64) -> tuple[mx.array, mx.array, mx.array]:
    """[1, 4, 3, D] and twice [1, 2, 5, D]"""
    return normal(1, 4, 3, D, seed=1), normal(1, 2, 5, D, seed=2), normal(1, 2, 5, D, seed=3)


def many_heads(mask: Any) -> mx.array:
    weights = [normal(6, 6, seed=seed) for seed in range(4)]
    return SimpleMultiHeadAttention(6, 2, *weights)(*[normal(1, 3, 6, seed=4)] * 3, mask=mask)


def self_attention(mask: Any, cache: TinyKvCache | None = None) -> mx.array:
    weights = [normal(size, 64, seed=size) for size in (64, 32, 32, 64)]
    return Qwen3MultiHeadAttention(CONFIG, *weights, RoPE(16, 10))(normal(1, 3, 64, seed=5), 0, cache, mask)


ATTENTIONS: dict[str, Callable[[Any], object]] = {
    "scaled_dot_product_attention_simple": lambda mask: scaled_dot_product_attention_simple(
        *qkv()[1:], qkv()[2], None, mask
    ),
    "SimpleMultiHeadAttention": many_heads,
    "scaled_dot_product_attention_grouped": lambda mask: scaled_dot_product_attention_grouped(
        *qkv(), None, mask
    ),
    "flash_attention": lambda mask: flash_attention(*qkv(), None, mask),
    "block_mask": lambda mask: block_mask(mask, range(3), range(5), 3, 5),
    "attend_queries": lambda mask: attend_queries(*qkv()[1:], qkv()[2], mask, range(3)),
    "dispatch_attention": lambda mask: dispatch_attention(*qkv(), None, mask),
    "dispatch_attention without a kernel": lambda mask: dispatch_attention(*qkv(D=7), None, mask),
    "flash_attention_cpu": lambda mask: flash_attention_cpu(*qkv(), 1.0, mask),
    "flash_attention_gpu": lambda mask: flash_attention_gpu(*qkv(), None, mask),
    "Qwen3MultiHeadAttention": self_attention,
}


@pytest.mark.parametrize("mask", ["Causal", "causal_mask", ""])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_word_that_is_no_mask_is_refused(name: str, mask: str) -> None:
    with check_value_error(mask=mask, what=name):
        ATTENTIONS[name](mask)


@pytest.mark.parametrize(
    "cache",
    [
        TinyKvFullCache,
        lambda: RowKvCaches([TinyKvFullCache()]),
        lambda: PagedKvCache(PagedKvPool(1, 4, 4), 0, [2, 0]),
    ],
)
def test_a_cache_stores_nothing_when_its_mask_is_refused(cache: Callable[[], TinyKvCache]) -> None:
    own = cache()
    with check_value_error(mask="Causal"):
        self_attention("Causal", own)
    check_equal(own.state, [], "state after the error")


def full_cache(layer: int) -> TinyKvFullCache:
    cache = TinyKvFullCache()
    shape = (1, 2, 5, 32)
    cache.update_and_fetch(normal(*shape, seed=layer), normal(*shape, seed=layer + 5))
    return cache


def slots(layer: int) -> BatchingKvCache:
    cache = BatchingKvCache(2)
    cache.add_request(full_cache(layer), 1)
    return cache


POOL = PagedKvPool(3, 4, 4)


def paged(layer: int) -> PagedKvCache:
    return PagedKvCache(POOL, layer, [2, 0], offset=5)


def ragged(layer: int) -> RaggedKvCache:
    sequence = Sequence(0, prompt_of(6))
    sequence.num_computed_tokens = 5
    batch = ForwardBatch.of(output_of((sequence, 1)), {0: BlockTable([2, 0])}, POOL)
    return RaggedKvCache(POOL, layer, batch)


QUANTIZED_POOL = QuantizedKvPool(3, 4, 4)


def quantized(layer: int) -> QuantizedKvCache:
    sequence = Sequence(0, prompt_of(6))
    sequence.num_computed_tokens = 5
    output = output_of((sequence, 1))
    batch = QuantizedBatch.of_quantized(output, {0: BlockTable([2, 0])}, QUANTIZED_POOL)
    return QuantizedKvCache(QUANTIZED_POOL, layer, batch)


CACHES: dict[str, Callable[[int], TinyKvCache]] = {
    "TinyKvFullCache": full_cache,
    "BatchingKvCache": slots,
    "RowKvCaches": lambda layer: RowKvCaches([full_cache(layer)]),
    "PagedKvCache": paged,
    "RaggedKvCache": ragged,
    "QuantizedKvCache": quantized,
}


@pytest.mark.parametrize("offset", [0, 4, 6, [0], [6]], ids=str)
@pytest.mark.parametrize("name", CACHES)
def test_an_offset_where_a_cache_does_not_end_is_refused(name: str, offset: int | list[int]) -> None:
    model = small_model()
    with check_value_error(**{"offset": offset, "cache.offset": 5}, what=name):
        model(mx.array([[3]]), offset, [CACHES[name](layer) for layer in range(3)])


@pytest.mark.parametrize("offset", [5, [5]], ids=str)
@pytest.mark.parametrize("name", CACHES)
def test_the_offset_where_a_cache_ends(name: str, offset: int | list[int]) -> None:
    logits = small_model()(mx.array([[3]]), offset, [CACHES[name](layer) for layer in range(3)])
    check_equal(logits.shape[:2], (1, 1), "rows and positions of the logits")


def test_an_empty_cache_begins_at_0() -> None:
    model = small_model()
    with check_value_error(**{"offset": 7, "cache.offset": 0}):
        model(mx.array([[3]]), 7, model.create_kv_cache())


class Endless(IdTokenizer):
    """Ends no answer."""

    eos_token_ids: set[int] = set()


LONG_PROMPTS = [[1 + i % 29 for i in range(length)] for length in (60, 63, 64)]


def answers(kind: type[Engine], max_seq_len: int) -> list[GenerationResult]:
    with kind(random_qwen3(), Endless(), None, max_seq_len, BlockManager(60, 4)) as engine:
        return engine.generate(LONG_PROMPTS)


RUNS: dict[str, Callable[[int], list[GenerationResult]]] = {
    "in turn": partial(answers, Engine),
    "overlapped": partial(answers, overlapping_engine),
    "with drafts": partial(answers, drafting_engine),
    "BatchGenerator": lambda max_seq_len: batch_generate(
        random_qwen3(), Endless(), LONG_PROMPTS, max_seq_len, 2
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_request_may_become_longer_than_the_positions_of_the_model(name: str) -> None:
    for max_seq_len in (65, 512):
        with check_value_error(max_seq_len=max_seq_len, max_position_embeddings=64, what=name):
            RUNS[name](max_seq_len)
    lengths = [len(result.token_ids) for result in RUNS[name](64)]
    check_equal(lengths, [4, 1, 0], "tokens of answers to prompts of 60, 63 and 64 tokens")
