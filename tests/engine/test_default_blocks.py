"""An engine that is given no blocks: a pool of its own, as large as it can use and memory allows."""

import resource
from pathlib import Path

import mlx.core as mx
import pytest

from tests.support.batching import small_model
from tests.support.fakes import FakeTokenizer, prompt_of
from tiny_llm import (
    BlockManager,
    DenseRunner,
    Engine,
    ModelRunner,
    SamplingParams,
    SchedulerConfig,
    UnlimitedBlocks,
)
from tiny_llm import cache_bytes_per_token as bytes_per_token
from tiny_llm.engine import default_blocks, memory
from tiny_llm.ops.quantized_blocks import words_per_head

tokenizer = FakeTokenizer(eos_token_ids=[])


def engine(blocks: UnlimitedBlocks | None = None) -> Engine:
    return Engine(small_model(), tokenizer, SchedulerConfig(8, 3), 40, blocks)


def answers(engine: Engine) -> list[tuple[int, ...]]:
    prompts = [prompt_of(size, seed) for seed, size in enumerate((11, 3, 17, 6))]
    return [tuple(result.token_ids) for result in engine.generate(prompts, SamplingParams(max_tokens=8))]


def test_the_pool_holds_all_that_may_run_at_its_longest() -> None:
    paged = engine()
    assert isinstance(paged.runner, ModelRunner)
    assert (paged.scheduler.blocks.num_blocks, paged.scheduler.blocks.block_size) == (3 * 3, 16)
    assert answers(paged) == answers(engine(UnlimitedBlocks()))


@pytest.mark.parametrize(("num_in_memory", "num_blocks"), [(0, 1), (1, 1), (5, 5), (9, 9), (10, 9)])
def test_the_pool_takes_half_of_free_memory_at_most(
    monkeypatch: pytest.MonkeyPatch, num_in_memory: int, num_blocks: int
) -> None:
    free = 2 * num_in_memory * 16 * bytes_per_token(small_model().config) + 1
    monkeypatch.setattr(default_blocks, "free_memory", lambda: free)
    assert engine().scheduler.blocks.num_blocks == num_blocks


@pytest.mark.parametrize("kv_bits", [8, 4])
def test_more_quantized_blocks_fit(monkeypatch: pytest.MonkeyPatch, kv_bits: int) -> None:
    config = small_model().config
    num_words = sum(words_per_head(config.head_dim, bits) for bits in (8, kv_bits))
    num_bytes = 4 * num_words * config.num_key_value_heads * config.num_hidden_layers
    monkeypatch.setattr(default_blocks, "free_memory", lambda: 2 * 5 * 16 * num_bytes + 1)
    quantized = Engine(small_model(), tokenizer, SchedulerConfig(8, 3), 40, kv_bits=kv_bits)
    assert quantized.scheduler.blocks.num_blocks == 5
    assert engine().scheduler.blocks.num_blocks < 5


def test_what_arrays_hold_is_not_free() -> None:
    before = memory.free_memory()
    held = mx.zeros(1_000_000)
    mx.eval(held)
    assert 4_000_000 <= before - memory.free_memory() < 8_000_000
    assert 0 < before <= mx.get_memory_limit()


@pytest.mark.parametrize("share", [0.25, 4])
def test_free_memory_is_bounded_by_what_the_gpu_keeps_resident_too(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    resident = int(share * mx.get_memory_limit())
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": resident})
    monkeypatch.setattr(memory, "CGROUPS", ())
    most = min(resident, mx.get_memory_limit())
    assert 0 < memory.free_memory() == most - mx.get_active_memory()


def test_caches_grow_until_paging_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(engine())

    def run(*args: object) -> None:
        raise NotImplementedError("week 3 day 3 task 4")

    monkeypatch.setattr(ModelRunner, "run", run)
    dense = engine()
    assert isinstance(dense.runner, DenseRunner)
    assert answers(dense) == expected


def test_free_memory_is_bounded_by_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newer, older = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(memory, "CGROUPS", (newer, older))
    unbounded = memory.free_memory()
    newer.write_text("max\n")
    assert memory.free_memory() == unbounded
    older.write_text(f"{2**20 + mx.get_active_memory()}\n")
    assert memory.free_memory() == 2**20


def test_free_memory_is_bounded_by_the_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**50, resource.RLIM_INFINITY))
    assert 2**49 < memory.address_space() <= 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**20, resource.RLIM_INFINITY))
    assert memory.free_memory() <= 2**20


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_a_pool_larger_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch, kv_bits: int | None) -> None:
    model, blocks = small_model(), BlockManager(30, 4)
    with Engine(model, tokenizer, SchedulerConfig(8, 3), 40, blocks, kv_bits=kv_bits) as engine:
        engine.generate([prompt_of(9)], SamplingParams(max_tokens=1))
        pool = engine.runner.pool  # type: ignore[attr-defined]
        kept = mx.float32 if kv_bits is None else mx.uint32  # all but the blocks of floats
        num_held = sum(x.nbytes for x in pool.state if x.dtype == kept)
    num_blocks = 31 if kv_bits is None else 30  # with the block of the null slot
    assert memory.pool_bytes(model, num_blocks * 4, kv_bits) == num_held
    monkeypatch.setattr(memory, "free_memory", lambda: 3 * 2**29)
    memory.check_memory(20, 3 * 2**29)
    with pytest.raises(
        ValueError, match=r"20 blocks need 3.0 GiB, and this process may have 1.5: lower num_gpu"
    ):
        memory.check_memory(20, 3 * 2**30)


def test_ranks_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLX_RANK", raising=False)
    monkeypatch.setattr(memory, "container_limit", lambda: 12 * memory.GIB)
    active = mx.get_active_memory()
    whole = memory.free_memory() + active
    assert whole <= 12 * memory.GIB
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text('[["127.0.0.1:1001"], ["127.0.0.1:1002"], ["10.0.0.2:1001"], ["127.0.0.1:1003"]]')
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    for rank, num_sharing in ((0, 3), (2, 1), (3, 3)):
        monkeypatch.setenv("MLX_RANK", str(rank))
        assert memory.free_memory() == whole // num_sharing - active, f"rank {rank}"
