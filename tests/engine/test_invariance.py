"""Scheduling changes when tokens are computed, never which, whatever the engine does besides.

`pdm run author laws -k invariance` tries as many new schedules in each round, `author schedules` any number.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engines import overlapping_engine
from tests.support.led_schedules import check_law_on_ranks
from tests.support.schedules import (
    EITHER,
    FLOATS,
    POOLS,
    QUANTIZED,
    EngineSchedule,
    Pool,
    Schedule,
    check_engine_law,
    check_law,
    engine_schedules,
    schedules,
)
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import Engine

pytestmark = pytest.mark.usefixtures("on_cpu")  # on an emulated GPU they take minutes
KINDS: dict[str, Callable[..., Engine]] = {
    "plain": Engine,
    "overlapping": overlapping_engine,
    **{name: speculative(make) for name, make in DRAFTERS.items()},
}
IN_BLOCKS = st.one_of(*(pool for name, pool in POOLS.items() if name != "dense"))
no_health_checks = {"suppress_health_check": list(HealthCheck)}


@st.composite
def with_features(draw: st.DrawFn, pools: st.SearchStrategy[Pool | None]) -> EngineSchedule:
    """A schedule with grammars, quantized blocks and experts, each of them half of the time."""
    schedule: EngineSchedule = draw(engine_schedules(pools, is_constrained=EITHER))
    bits = QUANTIZED if schedule.pool is not None and draw(EITHER) else FLOATS
    return replace(schedule, kv_bits=draw(bits), is_sparse=draw(EITHER))


@settings(max_examples=30, **no_health_checks)
@given(schedules())
def test_output_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    check_law(schedule)


@pytest.mark.parametrize("pools", list(POOLS))
@settings(max_examples=30, **no_health_checks)
@given(data=st.data())
def test_output_does_not_depend_on_the_engine_s_schedule(pools: str, data: st.DataObject) -> None:
    check_engine_law(data.draw(engine_schedules(POOLS[pools], is_constrained=EITHER)))


@pytest.mark.parametrize(
    ("kind", "pools"),
    [(kind, pools) for kind in KINDS for pools in POOLS if pools != "dense" or kind not in DRAFTERS],
)
@settings(max_examples=8, **no_health_checks)
@given(data=st.data())
def test_no_feature_changes_a_token(kind: str, pools: str, data: st.DataObject) -> None:
    check_engine_law(data.draw(with_features(POOLS[pools])), KINDS[kind])


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=6, **no_health_checks)
@given(data=st.data())
def test_no_number_of_ranks_changes_a_token(kind: str, data: st.DataObject) -> None:
    check_law_on_ranks(data.draw(with_features(IN_BLOCKS)), KINDS[kind])
