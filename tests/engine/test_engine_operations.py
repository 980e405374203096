"""What computes an engine's steps: the operations of the model's table, chosen when a runner asks."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from accelerated import accelerate, pretrained
from accelerated.accelerate import engine_operations
from scripts.checkpoints.files import resolve_checkpoint
from tests.support.batching import small_model
from tiny_llm import (
    BlockManager,
    Embedding,
    LeadingModel,
    ModelRunner,
    Qwen3Model,
    SchedulerConfig,
    Watchdog,
    load,
    paged_attention_simple,
    quantized_paged_attention_simple,
)
from tiny_llm.engine.sampling_batch import SamplingBatch, sample_one_by_one
from tiny_llm.model.engine_operations import EngineOperations
from tiny_llm.model.ranks import OneRank
from tiny_llm.ops.writing import quantize_blocks_simple, store_rows_simple
from tiny_llm.speculation.draft_runner import DraftRunner

CHECKPOINT = resolve_checkpoint("qwen3-kjv-1m")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    accelerate._chosen.cache_clear()
    yield
    accelerate._chosen.cache_clear()


def plain_model() -> Qwen3Model:
    """A model that is put together without a table."""
    model = small_model()
    return Qwen3Model(model.config, model.embedding, model.layers, model.norm)


def test_nothing_is_chosen_before_a_runner_asks() -> None:
    model = plain_model()
    model.operations = engine_operations(mx.float32)
    assert accelerate._chosen.cache_info().currsize == 0
    ModelRunner(model, BlockManager(4, 4))
    assert accelerate._chosen.cache_info().currsize == 4  # attention, the pool's writer and two samplers


@pytest.mark.parametrize(
    ("kv_bits", "attention"), [(None, paged_attention_simple), (8, quantized_paged_attention_simple)]
)
def test_a_model_without_a_table_has_plain_operations(kv_bits: int | None, attention: object) -> None:
    runner = ModelRunner(plain_model(), BlockManager(4, 4), kv_bits=kv_bits)
    assert (runner.attention, runner.sampler, runner.mask_rows) == (attention, sample_one_by_one, None)
    assert runner.pool.store_rows is store_rows_simple
    if kv_bits:
        assert runner.pool.quantize_blocks is quantize_blocks_simple
    assert accelerate._chosen.cache_info().currsize == 0


def test_a_loaded_model_and_one_that_leads_ranks_carry_the_table() -> None:
    model, _ = load(CHECKPOINT, mx.float32)
    assert model.operations == accelerate.best_operations(mx.float32)
    leading = LeadingModel(model, OneRank(), Watchdog(SchedulerConfig(), 64))
    assert leading.operations is model.operations


def test_where_bits_must_not_change_a_plain_head_multiplies_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", "off")  # so that the embedding is expanded
    monkeypatch.setattr(pretrained, "is_invariant", lambda: True)
    shapes, as_linear = [], Embedding.as_linear

    def noting(embedding: Embedding, x: mx.array) -> mx.array:
        shapes.append(x.shape)
        return as_linear(embedding, x)

    monkeypatch.setattr(Embedding, "as_linear", noting)
    model, _ = load(CHECKPOINT, mx.float32)
    E, V = model.config.hidden_size, model.config.vocab_size
    assert model.logits(mx.ones((2, 3, E))).shape == (2, 3, V)
    assert shapes == [(1, E)] * 6


def test_pools_and_drafts_take_what_the_table_has() -> None:
    model = plain_model()
    used = EngineOperations(
        store_rows=lambda: store, quantize_blocks=lambda: quantize, sampler=lambda: draw_first
    )
    model.operations = used
    pool = ModelRunner(model, BlockManager(4, 4), kv_bits=8).pool
    assert (pool.store_rows, pool.quantize_blocks) == (store, quantize)
    assert ModelRunner(model, BlockManager(4, 4)).pool.store_rows is store
    assert DraftRunner(model, BlockManager(4, 4))._sampler is draw_first


def store(held: mx.array, slots: mx.array, new: mx.array) -> mx.array:
    return store_rows_simple(held, slots, new)


def quantize(blocks: mx.array, places: mx.array, floats: mx.array, tails: mx.array) -> mx.array:
    return quantize_blocks_simple(blocks, places, floats, tails)


def draw_first(logits: mx.array, batch: SamplingBatch) -> mx.array:
    return mx.zeros(logits.shape[0], mx.int32)
