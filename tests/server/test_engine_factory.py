"""The engines that serve: their pools and policies, and one model for all of them."""

from typing import Any

import pytest

from http_server.engine_factory import EngineFactory
from http_server.speculation import DrafterFactory
from tests.support.batching import small_model
from tests.support.fakes import FakeTokenizer
from tiny_llm import PrefixCachingBlockManager, Priority, SchedulerConfig

CONFIG = SchedulerConfig(8, 3)


def factory(**settings: Any) -> EngineFactory:
    return EngineFactory(
        lambda: (small_model(), FakeTokenizer()), CONFIG, **{"max_model_len": 40, **settings}
    )


@pytest.mark.parametrize(
    ("settings", "num_blocks", "block_size"),
    [
        ({}, 9, 16),
        ({"block_size": 10}, 15, 10),  # room for as many tokens as 9 blocks of 16 have, at least
        ({"block_size": 8, "num_blocks": 5}, 5, 8),
    ],
)
@pytest.mark.parametrize("is_caching", [False, True])
def test_the_pool(settings: dict[str, Any], num_blocks: int, block_size: int, is_caching: bool) -> None:
    with factory(prefix_caching=is_caching, **settings)() as engine:
        blocks: Any = engine.scheduler.blocks
        assert (blocks.num_blocks, blocks.block_size) == (num_blocks, block_size)
        assert isinstance(blocks, PrefixCachingBlockManager) == is_caching


@pytest.mark.parametrize("is_caching", [False, True])
@pytest.mark.parametrize(("overcommit", "num_spared"), [(False, 0), (True, 3)])
def test_a_pool_that_overcommits_spares_a_tenth(is_caching: bool, overcommit: bool, num_spared: int) -> None:
    with factory(prefix_caching=is_caching, num_blocks=32, overcommit=overcommit)() as engine:
        blocks: Any = engine.scheduler.blocks
        assert (blocks.overcommit, blocks.num_watermark_blocks) == (overcommit, num_spared)


@pytest.mark.parametrize("drafts", [None, DrafterFactory(3)])
@pytest.mark.parametrize("kv_bits", [None, 8, 4])
def test_quantized_keys_and_values(kv_bits: int | None, drafts: DrafterFactory | None) -> None:
    with factory(kv_bits=kv_bits, make_drafter=drafts)() as engine:
        pool = engine.runner.pool  # type: ignore[attr-defined]
        assert getattr(pool, "kv_bits", None) == kv_bits


@pytest.mark.parametrize(("name", "is_priority"), [("fcfs", False), ("priority", True)])
def test_the_policy(name: str, is_priority: bool) -> None:
    with factory(policy=name)() as engine:
        assert isinstance(engine.scheduler.policy, Priority) == is_priority


def test_all_engines_have_the_model_that_was_loaded_once() -> None:
    loaded = []

    def load() -> Any:
        loaded.append((small_model(), FakeTokenizer()))
        return loaded[-1]

    make = EngineFactory(load, CONFIG, 40)
    for _ in range(2):
        with make():
            pass
    assert len(loaded) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_model_len": 0}, "max_model_len must be from 1 to"),
        ({"max_model_len": 10**9}, "max_model_len must be from 1 to"),
        ({"kv_bits": 5}, "bits must be 4 or 8, got 5"),
        ({"num_blocks": 4, "block_size": 8}, "4 blocks of 8 tokens, too few for a request of 40"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        factory(**settings)()
