"""An engine on several ranks: every law holds, and each request gets what it gets alone in one process."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.led_schedules import check_law_on_ranks
from tests.support.schedules import EITHER, FLOATS, POOLS, engine_schedules
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import (
    Engine,
    EngineStep,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    Watchdog,
)
from tiny_llm.serving.given.overlapping_engine import OverlappingEngine
from tiny_llm.serving.ranks.given.guarded_engine import RankLost, guard_steps

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


class Stepping:
    """An engine whose steps take no time, until one finds a rank lost."""

    error: Exception | None = None

    def step(self) -> EngineStep:
        if self.error is not None:
            raise self.error
        entry = ScheduledTokens(Sequence(0, [1, 2, 3]), 0, 3, True)
        return EngineStep(SchedulerOutput((entry,)), {}, ())


def test_guarded_steps_are_learned_from() -> None:
    engine, watchdog = Stepping(), Watchdog(SchedulerConfig(4, 2), 8)
    guard_steps(engine, watchdog)  # type: ignore[arg-type]
    for _ in range(16):
        engine.step()
    assert watchdog.limit == watchdog.at_least


@pytest.mark.parametrize(
    "error", [RuntimeError("[ring] connection to a peer was lost"), ConnectionError("gone")]
)
def test_a_lost_rank_is_no_error_to_recover_from(error: Exception) -> None:
    engine = Stepping()
    guard_steps(engine, Watchdog(SchedulerConfig(4, 2), 8))  # type: ignore[arg-type]
    engine.error = error
    with pytest.raises(RankLost):
        engine.step()
    engine.error = RuntimeError("another error")
    with pytest.raises(RuntimeError, match="another error"):
        engine.step()
