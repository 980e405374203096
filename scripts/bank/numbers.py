"""The numbers of tasks, which change when a task is put before another."""

import subprocess
from pathlib import Path

from scripts.course import ROOT, Course, Day, read_course


def course_at(commit: str, root: Path = ROOT) -> Course:
    """The map of the course as it was at a commit.

    Raises:
        ValueError: git knows no such commit, or it has no map.
    """
    command = ["git", "show", f"{commit}:course/course.toml"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8")
    if result.returncode:
        raise ValueError(f"{commit!r} is no commit with course/course.toml: {result.stderr.strip()}")
    return read_course(result.stdout)


def number_now(day: Day, number: int, old: Course) -> int:
    """The number that a task of a day has now, by its title, or else by what it asks for.

    Raises:
        ValueError: the day had no such task, or has none like it any more.
    """
    task = old.day(day.week, day.day).task(number)
    same = [each for each in day.tasks if each.title == task.title]
    alike = same or [each for each in day.tasks if {*each.symbols} & {*task.symbols}]
    if len(alike) != 1:
        raise ValueError(
            f"its task was {task.title!r}, which {len(alike)} tasks of the day look like now: choose one"
        )
    return alike[0].number
