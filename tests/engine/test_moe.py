"""Mixtures of experts in the engine: whatever runs beside a request, it gets what it gets alone."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.test_overlap import Endless
from tests.support.check import check_close, check_equal
from tests.support.checkpoints import MOE_VARIANTS, build, save
from tests.support.schedules import (
    EITHER,
    FLOATS,
    MAX_SEQ_LEN,
    POOLS,
    check_engine_law,
    engine_schedules,
    random_moe,
)
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams, SchedulerConfig, load_moe_model
from tiny_llm.given.accelerate import best_operations
from tiny_llm.given.best_grouped_matmul import best_grouped_matmul
from tiny_llm.kernels.dispatch_grouped_matmul import dispatch_grouped_matmul
from tiny_llm.ops.experts import grouped_matmul_simple
from tiny_llm.serving.given.overlapping_engine import OverlappingEngine

pytestmark = pytest.mark.usefixtures("on_cpu")
KINDS = {
    "plain": Engine,
    "overlapping": OverlappingEngine,
    **{name: speculative(make) for name, make in DRAFTERS.items()},
}
EIGHT_BITS: st.SearchStrategy[int | None] = st.just(8)


@pytest.mark.parametrize("pool", list(POOLS))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_output_does_not_depend_on_the_schedule(pool: str, data: st.DataObject) -> None:
    schedule = data.draw(engine_schedules(POOLS[pool]))
    check_engine_law(replace(schedule, is_sparse=True))


@pytest.mark.parametrize("kv_bits", [FLOATS, EIGHT_BITS], ids=["floats", "8 bits"])
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kinds_of_engine(kind: str, kv_bits: st.SearchStrategy[int | None], data: st.DataObject) -> None:
    pools = st.one_of(*(pool for name, pool in POOLS.items() if name != "dense"))
    schedule = data.draw(engine_schedules(pools, is_constrained=EITHER, kv_bits=kv_bits))
    check_engine_law(replace(schedule, is_sparse=True), KINDS[kind])


def test_preempted_requests_and_shared_prefixes() -> None:
    """A pool of 9 blocks for three requests of 6, whose prompts begin alike."""
    prompts = [[*range(2, 13), end] for end in (20, 21, 22)]
    params = SamplingParams(max_tokens=12)

    def answers(blocks: PrefixCachingBlockManager, num_at_once: int) -> list[list[int]]:
        config = SchedulerConfig(7, num_at_once)
        with Engine(random_moe(), Endless(), config, MAX_SEQ_LEN, blocks) as engine:
            return [list(result.token_ids) for result in engine.generate(prompts, params)]

    alone = answers(PrefixCachingBlockManager(60, 4), 1)
    blocks = PrefixCachingBlockManager(9, 4, overcommit=True)
    check_equal(answers(blocks, 3), alone, "tokens of three requests at once")
    assert blocks.num_hit_tokens > 0


@pytest.mark.parametrize("variant", MOE_VARIANTS, ids=lambda variant: variant.name)
def test_the_fastest_operations_give_the_same(variant, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = save(variant, build(variant), tmp_path)
    plain = load_moe_model(folder, mx.float32)
    operations = replace(best_operations(), grouped_matmul=dispatch_grouped_matmul)
    fast = load_moe_model(folder, mx.float32, operations)
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(80))
    check_close(fast(tokens), plain(tokens), f"logits of {variant.name}", 1e-3)


@pytest.mark.parametrize(
    ("mode", "expected"), [("own", dispatch_grouped_matmul), ("off", grouped_matmul_simple)]
)
def test_the_best_product(mode: str, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", mode)
    assert best_grouped_matmul() is expected
