"""The drawing of the engine: it has the days of the course, and `progress` lights what passes."""

import re
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from scripts import engine_drawing
from scripts.course import Course, Task, load_course
from scripts.engine_drawing import PANELS, Part, Place, parts_by_day
from scripts.learn.engine_lines import engine_lines
from scripts.learn.task_state import TaskState
from tests.support.commands import run

COURSE = load_course()


def states(solved: Collection[str]) -> list[TaskState]:
    """Of all tasks, those with these ids solved; none is optional but as the course says."""
    return [
        TaskState(
            day,
            task,
            ("a",) * (task.id in solved),
            {},
            is_core=task.is_core("none"),
            is_begun=task.id in solved,
        )
        for day in COURSE.days
        for task in day.tasks
    ]


def drawn(solved: Collection[str] = ()) -> str:
    return "\n".join(line.plain for line in engine_lines(states(solved)))


def tasks(week: int, day: int) -> list[Task]:
    return [task for task in COURSE.day(week, day).tasks if task.is_core("none")]


def test_every_day_is_one_part_in_the_order_of_the_course() -> None:
    assert list(parts_by_day(COURSE)) == list(COURSE.days)
    assert sum(len(panel.parts) for panel in PANELS) == len(COURSE.days)


def test_a_day_without_a_part_is_named() -> None:
    course = Course((*COURSE.days, replace(COURSE.days[-1], day=99)))
    with pytest.raises(ValueError, match=r"day 4\.99 has no part: give it one in scripts/engine_drawing\.py"):
        parts_by_day(course)


@pytest.mark.parametrize(
    ("part", "words"),
    [(Part(9, 1, "x"), "there is no week 9"), (Part(1, 1, "x"), r"day 1\.1 has two parts: attention and x")],
)
def test_a_part_of_no_day_or_of_one_that_has_a_part_is_refused(
    part: Part, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = replace(PANELS[-1], parts=(*PANELS[-1].parts, part))
    monkeypatch.setattr(engine_drawing, "PANELS", (*PANELS[:-1], panel))
    with pytest.raises(ValueError, match=words):
        parts_by_day(COURSE)


@pytest.mark.parametrize("name", ["wide", "tall"])
def test_panels_leave_each_other_room(name: str) -> None:
    places: list[Place] = [getattr(panel, name) for panel in PANELS]
    for a, b in combinations(places, 2):
        is_beside = a.x + a.width + 16 <= b.x or b.x + b.width + 16 <= a.x
        is_above = a.y + a.height + 16 <= b.y or b.y + b.height + 16 <= a.y
        assert is_beside or is_above, (a, b)


def test_the_terminal_shows_every_part_once_in_80_columns() -> None:
    text = drawn()
    assert max(map(len, text.split("\n"))) <= 80
    for day, part in parts_by_day(COURSE).items():
        assert len(re.findall(rf"· {day.week}\.{day.day} {part.label}(?: |$)", text, re.M)) == 1
    assert all(panel.name in text for panel in PANELS)


def test_a_part_is_lit_when_all_core_tasks_of_its_day_are_solved() -> None:
    all_of_day = [task.id for task in tasks(1, 2)]
    assert "· 1.2 RoPE" in drawn()
    assert "◐ 1.2 RoPE" in drawn(all_of_day[:-1])
    assert "✓ 1.2 RoPE" in drawn(all_of_day)
    assert [line for line in drawn(all_of_day).split("\n") if "✓" in line or "◐" in line] == [
        line for line in drawn(all_of_day).split("\n") if "1.2 RoPE" in line
    ]


def test_optional_tasks_light_nothing() -> None:
    optional = [task.id for task in COURSE.day(1, 2).tasks if task.optional]
    assert optional
    assert drawn(optional) == drawn()


def test_progress_draws_the_engine_and_lists_the_day_that_is_next(package: Path) -> None:
    result = run("scripts.learn.progress", "--package", str(package))
    assert result.returncode == 0, result.stderr
    head, rest = result.stdout.split("\n\n", 1)
    assert head == drawn()
    assert rest.startswith("week 1 day 1  Attention\n  · 1. Softmax and the linear layer: not written yet\n")
    assert rest.count("not written yet") == len(COURSE.day(1, 1).tasks)
    assert "\x1b" not in result.stdout
