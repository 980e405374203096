"""Scheduling changes when tokens are computed, never which. `pdm run schedules` tries many more."""

from hypothesis import HealthCheck, given, settings

from schedules import Schedule, check_law, schedules

NUM_SCHEDULES = 500


@settings(max_examples=NUM_SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_output_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    check_law(schedule)
