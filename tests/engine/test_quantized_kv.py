"""Quantized keys and values: whatever the engine does, a request gets what it gets alone."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.schedules import (
    EITHER,
    POOLS,
    QUANTIZED,
    IdTokenizer,
    check_engine_law,
    engine_schedules,
    random_qwen3,
)
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import BlockManager, Engine, UnlimitedBlocks
from tiny_llm.serving.given.blocks import Blocks
from tiny_llm.serving.given.overlapping_engine import OverlappingEngine

pytestmark = pytest.mark.usefixtures("on_cpu")  # on an emulated GPU they take minutes
KINDS = {
    "plain": Engine,
    "overlapping": OverlappingEngine,
    **{name: speculative(make) for name, make in DRAFTERS.items()},
}


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_output_does_not_depend_on_the_schedule(kind: str, data: st.DataObject) -> None:
    pools = st.one_of(*(pool for name, pool in POOLS.items() if name != "dense"))
    schedule = data.draw(engine_schedules(pools, is_constrained=EITHER, kv_bits=QUANTIZED))
    check_engine_law(schedule, KINDS[kind])


@pytest.mark.parametrize(
    ("head_dim", "blocks", "kv_bits", "reason"),
    [
        (32, BlockManager(4, 4), 5, "bits must be 4 or 8, got 5"),
        (32, UnlimitedBlocks(), 8, "need the blocks of a pool: use BlockManager"),
        (8, BlockManager(4, 4), 8, "head_dim that is a multiple of 32, got 8"),
    ],
)
def test_what_is_refused(head_dim: int, blocks: Blocks, kv_bits: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Engine(random_qwen3(head_dim=head_dim), IdTokenizer(), blocks=blocks, kv_bits=kv_bits)
