"""An engine on several ranks: every law holds, and each request gets what it gets alone in one process."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.led_schedules import check_law_on_ranks
from tests.support.schedules import EITHER, FLOATS, POOLS, engine_schedules
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import Engine
from tiny_llm.serving.given.overlapping_engine import OverlappingEngine

pytestmark = pytest.mark.usefixtures("on_cpu")
KINDS = {
    "plain": Engine,
    "overlapping": OverlappingEngine,
    **{name: speculative(make) for name, make in DRAFTERS.items()},
}
BITS: st.SearchStrategy[int | None] = st.sampled_from([8, 4])


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("kv_bits", [FLOATS, BITS], ids=["floats", "quantized blocks"])
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_laws(
    kind: str, kv_bits: st.SearchStrategy[int | None], is_sparse: bool, data: st.DataObject
) -> None:
    pools = st.one_of(*(pool for name, pool in POOLS.items() if name != "dense"))
    schedule = data.draw(engine_schedules(pools, is_constrained=EITHER, kv_bits=kv_bits))
    schedule = replace(schedule, is_sparse=is_sparse)
    check_law_on_ranks(schedule, KINDS[kind])
