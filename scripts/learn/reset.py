"""Put the starter's text of one task back."""

from typing import Annotated

import typer

from scripts.command import run_command
from scripts.course import Course, load_course
from scripts.errors import usage_errors
from scripts.learn.catch_up import require_modules
from scripts.learn.learner import (
    PACKAGE,
    Package,
    Yes,
    change,
    check_syntax,
    functions_of_tasks,
    read_package,
)
from scripts.sources.files import Sources, read_reference
from scripts.sources.patch import dig
from scripts.sources.render import starter_of

Week = Annotated[int, typer.Option(help="The week.")]
DayNumber = Annotated[int, typer.Option("--day", help="The day of the week.")]
TaskNumber = Annotated[int, typer.Option("--task", help="The task of the day.")]


def main(week: Week, day: DayNumber, task: TaskNumber, yes: Yes = False, package: Package = PACKAGE) -> None:
    """Put the stubs of a task's functions back, as they were at the start.

    You see the difference and are asked first, and the files as they were are kept in tiny_llm.backups/.

    Example: pdm run reset --week 1 --day 1 --task 2
    """
    with usage_errors():
        course = load_course()
        chosen = course.day(week, day).task(task)
        before = read_package(package)
        check_syntax(before, package)
        after = reset(before, course, {chosen.id})
        if after == before:
            print(f"nothing to reset: week {week} day {day} task {task} is as it was at the start")
            return
        change(package, before, after, yes)


def reset(sources: Sources, course: Course, chosen: set[str]) -> Sources:
    """The package with the functions of these tasks as in the starter.

    Raises:
        ValueError: a module is missing, or a function became something else.
    """
    starter = starter_of(course)
    symbols = functions_of_tasks(starter, course, chosen)
    require_modules(sources, symbols)
    return dig(sources, starter, read_reference(), symbols)


if __name__ == "__main__":
    run_command(main, "reset")
