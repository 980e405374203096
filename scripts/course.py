"""The map of the course, read from course.toml."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from scripts.setup import load_toml

ROOT = Path(__file__).resolve().parent.parent
COURSE = ROOT / "course"
Gpu = Literal["metal", "cuda", "none"]
"""The kind of GPU that a learner writes kernels for."""


@dataclass(frozen=True, order=True)
class Task:
    """What one exercise asks for; `id` is week.day.number, and the number counts from 1 within the day."""

    id: str
    number: int
    title: str
    symbols: tuple[str, ...]
    optional: bool = False
    gpu: Gpu | None = None

    def is_core(self, gpu: Gpu) -> bool:
        """Whether it is on the path of a learner who chose this GPU; all else is optional."""
        return not self.optional and self.gpu in (None, gpu)


@dataclass(frozen=True, order=True)
class Day:
    """One sitting."""

    week: int
    day: int
    title: str
    tasks: tuple[Task, ...]

    @property
    def stem(self) -> str:
        """The name of its files of hints, wrong solutions and messages, without their suffix."""
        return f"week_{self.week}_day_{self.day}"

    @property
    def test_file(self) -> Path:
        """The tests of its tasks."""
        return ROOT / "tests" / "days" / f"test_{self.stem}.py"

    def task(self, number: int) -> Task:
        """The task of that number; ValueError if the day has none."""
        if not 1 <= number <= len(self.tasks):
            raise ValueError(
                f"week {self.week} day {self.day} has tasks 1 to {len(self.tasks)}, not {number}"
            )
        return self.tasks[number - 1]


@dataclass(frozen=True)
class Course:
    """All days in order."""

    days: tuple[Day, ...]

    def week(self, week: int) -> tuple[Day, ...]:
        """The days of a week; ValueError if there are none."""
        days = tuple(day for day in self.days if day.week == week)
        if not days:
            raise ValueError(f"there is no week {week}: {self._choices({day.week for day in self.days})}")
        return days

    def day(self, week: int, day: int) -> Day:
        """One day; ValueError if there is no such day."""
        days = self.week(week)
        for candidate in days:
            if candidate.day == day:
                return candidate
        raise ValueError(f"week {week} has no day {day}: {self._choices({each.day for each in days})}")

    def day_called(self, name: str, option: str) -> Day:
        """The day that an option names as w2d3; ValueError if it does not, or there is no such day."""
        match = re.fullmatch(r"w(\d+)d(\d+)", name.strip().lower())
        if match is None:
            raise ValueError(f"{option} {name!r} names no day: write it as w2d1")
        return self.day(int(match[1]), int(match[2]))

    @staticmethod
    def _choices(numbers: set[int]) -> str:
        return f"choose one of {', '.join(map(str, sorted(numbers)))}"


@cache
def load_course(path: Path = COURSE / "course.toml") -> Course:
    """Read the map."""
    return read_course(path.read_text(encoding="utf-8"))


def read_course(text: str) -> Course:
    """The map that a text in TOML is."""
    content = load_toml(text)
    return Course(
        tuple(
            Day(
                week["week"],
                day["day"],
                day["title"],
                tuple(
                    Task(
                        f"{week['week']}.{day['day']}.{number}",
                        number,
                        task["title"],
                        tuple(task["symbols"]),
                        task.get("optional", False),
                        task.get("gpu"),
                    )
                    for number, task in enumerate(day["tasks"], start=1)
                ),
            )
            for week in content["weeks"]
            for day in week["days"]
        )
    )
