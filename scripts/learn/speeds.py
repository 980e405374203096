"""The learner's tokens per second, day by day: `pdm run bench --mine` keeps them, `progress` draws them."""

from collections.abc import Mapping
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from scripts.course import Day, load_course
from scripts.learn.kept import kept
from scripts.learn.learner import read_package, tasks_with_holes
from scripts.learn.remembered import day_name
from scripts.sources.files import Sources

COMMAND = "pdm run bench --mine"
FIRST_DAY = (1, 5)  # after it, a model computes
WIDTH = 32
Speeds = Mapping[str, float]


def keep_speeds(package: Path, speeds: Speeds) -> None:
    """Write down what was measured of a package, as the numbers of the day that it has come to."""
    day = day_reached(read_package(package))
    if day is not None:
        kept("speeds").put(day_name(day), dict(speeds))


def day_reached(sources: Sources) -> Day | None:
    """The last day that has a task whose functions are all written."""
    unwritten = tasks_with_holes(sources)
    reached = [day for day in load_course().days if any(task.id not in unwritten for task in day.tasks)]
    return reached[-1] if reached else None


def kept_speeds() -> dict[str, Speeds]:
    """Those of each day that has any, in the order of the course."""
    content = kept("speeds").read()
    found = {name: content.get(name) for name in map(day_name, load_course().days)}
    return {
        name: speeds
        for name, speeds in found.items()
        if isinstance(speeds, dict) and speeds and all(isinstance(each, float) for each in speeds.values())
    }


def print_speeds(console: Console) -> None:
    """A bar for each day, as long as the last of its numbers; nothing if there are none."""
    by_day = kept_speeds()
    if not by_day:
        return
    table = Table(box=None, header_style="bold", padding=(0, 1))
    names = list(dict.fromkeys(name for speeds in by_day.values() for name in speeds))
    for heading in ("day", *names):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column()
    most = max(speeds.get(names[-1], 0.0) for speeds in by_day.values())
    for day, speeds in by_day.items():
        numbers = (f"{speeds[name]:,.0f}" if name in speeds else "-" for name in names)
        table.add_row(day, *numbers, Bar(most, 0, speeds.get(names[-1], 0.0), width=WIDTH))
    console.print(f"\ntokens per second of your package, by `{COMMAND}`:", soft_wrap=True)
    console.print(table)
