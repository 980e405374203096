"""Scheduling changes when tokens are computed, never which. `pdm run schedules` tries many more."""

from hypothesis import HealthCheck, given, settings

from schedules import EngineSchedule, Schedule, check_engine_law, check_law, engine_schedules, schedules

NUM_SCHEDULES = 500


@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_output_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    check_law(schedule)


@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(engine_schedules())
def test_output_does_not_depend_on_the_engine_s_schedule(schedule: EngineSchedule) -> None:
    check_engine_law(schedule)
