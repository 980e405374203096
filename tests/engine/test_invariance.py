"""Scheduling changes when tokens are computed, never which. `pdm run author schedules` tries many more."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.schedules import (
    POOLS,
    EngineSchedule,
    Schedule,
    check_engine_law,
    check_law,
    engine_schedules,
    schedules,
)

NUM_SCHEDULES = 150  # of a kind: wrong solutions break the law by the 133rd
NUM_SHARED = 500  # where it takes up to 369, as few prompts share their blocks


@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_output_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    check_law(schedule)


@pytest.mark.parametrize("pools", [name for name in POOLS if name != "shared"])
@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_output_does_not_depend_on_the_engine_s_schedule(pools: str, data: st.DataObject) -> None:
    schedule: EngineSchedule = data.draw(engine_schedules(POOLS[pools]))
    check_engine_law(schedule)


@settings(max_examples=NUM_SHARED, suppress_health_check=list(HealthCheck))
@given(engine_schedules(POOLS["shared"]))
def test_output_does_not_depend_on_the_schedule_where_blocks_are_shared(schedule: EngineSchedule) -> None:
    check_engine_law(schedule)
