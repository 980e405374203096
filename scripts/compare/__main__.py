"""Compare the learner's functions with the reference: results, time and memory, on the same inputs."""

import sys
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.course import load_course
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from scripts.learn.learner import PACKAGE, Package
from scripts.waiting import show_progress

DIFFERENT_EXIT_CODE = 1
Week = Annotated[int, typer.Option(help="The week.")]
DayNumber = Annotated[int, typer.Option("--day", help="The day of the week.")]
TaskNumber = Annotated[int | None, typer.Option("--task", help="Only this task of the day.")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs of each case; fewer where one takes long.")]


def main(
    week: Week, day: DayNumber, task: TaskNumber = None, repeats: Repeats = 7, package: Package = PACKAGE
) -> None:
    """Run your functions and the reference's on the day's inputs: equal or not and where, time and memory.

    What you have not written yet is the reference's meanwhile, so the rest can be compared all the same. A
    time is the median of runs in turns; memory is the most that a run held at once. On the batching days a
    whole run follows, with both timelines. What takes neither time nor memory is left to the tests. The exit
    code is 0 when all is equal, else 1.

    Example: pdm run compare --week 1 --day 1
    """
    use_full_float32()
    with usage_errors():
        course = load_course()
        chosen = course.day(week, day)
        tasks = chosen.tasks if task is None else (chosen.task(task),)
        from scripts.compare import learner
        from scripts.compare.comparison import Comparison, is_compared  # which load the reference

        if not any(is_compared(symbol) for each in tasks for symbol in each.symbols):
            where = f"--week {week} --day {day} --task {tasks[0].number}"
            raise ValueError(
                f"this task has no time or memory to compare; its tests are: pdm run test {where}"
            )
        try:
            with learner.filled_package(package, course) as (yours, mine):
                comparison = Comparison(chosen, yours, mine, repeats)
                comparison.compare(tasks)
        finally:
            show_progress("")
    sys.exit(0 if comparison.is_equal else DIFFERENT_EXIT_CODE)


if __name__ == "__main__":
    run_command(main, "compare")
