"""Scheduling changes when tokens are computed, never which. `pdm run author schedules` tries many more."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.schedules import (
    EITHER,
    POOLS,
    EngineSchedule,
    Schedule,
    check_engine_law,
    check_law,
    engine_schedules,
    schedules,
)
from tiny_llm.serving.given.overlapping_engine import OverlappingEngine

pytestmark = pytest.mark.usefixtures("on_cpu")  # on an emulated GPU they take minutes
NUM_SCHEDULES = 500


@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_output_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    check_law(schedule)


@pytest.mark.parametrize("pools", list(POOLS))
@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_output_does_not_depend_on_the_engine_s_schedule(pools: str, data: st.DataObject) -> None:
    schedule: EngineSchedule = data.draw(engine_schedules(POOLS[pools], is_constrained=EITHER))
    check_engine_law(schedule)


@pytest.mark.parametrize("pools", list(POOLS))
@settings(max_examples=NUM_SCHEDULES // 5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_steps_that_overlap_change_no_token(pools: str, data: st.DataObject) -> None:
    schedule: EngineSchedule = data.draw(engine_schedules(POOLS[pools], is_constrained=EITHER))
    check_engine_law(schedule, OverlappingEngine)
