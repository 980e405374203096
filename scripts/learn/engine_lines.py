"""The engine of `scripts.engine_drawing` in a terminal of 80 columns, lit by what passes."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from scripts.course import load_course
from scripts.engine_drawing import PANELS, Panel, parts_by_day
from scripts.learn.task_state import TaskState

WIDTH = 80
DONE, BEGUN, DARK = ("✓", "green"), ("◐", "yellow"), ("·", "dim")
Light = tuple[str, str]
"""The sign of a part and its colour."""


def engine_lines(states: Sequence[TaskState]) -> Iterator[Text]:
    """The panels of the tall drawing, those beside each other in the same lines.

    Args:
        states: of all tasks of the course.
    """
    lights = {
        (day.week, day.day): light([state for state in states if state.day == day])
        for day in parts_by_day(load_course())
    }
    panels = sorted(PANELS, key=lambda panel: (panel.tall.y, panel.tall.x))
    for _, side_by_side in groupby(panels, key=lambda panel: panel.tall.y):
        beside = [*side_by_side]
        columns = [panel_lines(panel, WIDTH // len(beside), lights) for panel in beside]
        for parts in zip(*columns, strict=True):
            line = Text.assemble(*parts)
            line.rstrip()
            yield line


def light(of_day: Sequence[TaskState]) -> Light:
    """Whether all core tasks of a day are solved, some, or none."""
    solved = [state.is_solved for state in of_day if state.is_core]
    return DONE if all(solved) else BEGUN if any(solved) else DARK


def panel_lines(panel: Panel, width: int, lights: dict[tuple[int, int], Light]) -> Iterator[Text]:
    """The panel's name on a rule, then its parts."""
    yield Text.assemble((panel.name, "bold"), (f" {'─' * (width - len(panel.name) - 2)} ", "dim"))
    columns = panel.tall.columns
    for first in range(0, len(panel.parts), columns):
        line = Text()
        for part in panel.parts[first : first + columns]:
            sign, style = lights[part.week, part.day]
            line.append(f"{f'{sign} {part.week}.{part.day} {part.label}':{width // columns}}", style)
        line.pad_right(width - line.cell_len)
        yield line
