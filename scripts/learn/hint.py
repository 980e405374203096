"""Show the hints of a task, one more each time it is asked."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scripts.command import run_command
from scripts.course import COURSE, Day, Task, load_course
from scripts.errors import usage_errors
from scripts.learn.kept import Kept, kept
from scripts.setup import load_toml

HINTS = COURSE / "hints"
COUNTS_FOLDER = "hints"
NUM_TIERS = 3

Week = Annotated[int, typer.Option(help="Week of the task.")]
DayNumber = Annotated[int, typer.Option("--day", help="Day of the week.")]
TaskNumber = Annotated[int, typer.Option("--task", help="Task of the day.")]
All = Annotated[bool, typer.Option("--all", help="Show all three at once.")]
Again = Annotated[bool, typer.Option("--again", help="Show all those seen so far, and no new one.")]
Reset = Annotated[bool, typer.Option("--reset", help="Forget which ones of this task were seen.")]


def main(
    week: Week,
    day: DayNumber,
    task: TaskNumber,
    show_all: All = False,
    again: Again = False,
    reset: Reset = False,
) -> None:
    """Show a hint for a task: where to look, then the idea, then nearly the answer.

    Each call shows the next one; how many you saw is remembered, and --again shows them all.

    Example: pdm run hint --week 2 --day 7 --task 2
    """
    with usage_errors():
        if show_all + again + reset > 1:
            raise ValueError("--all, --again and --reset exclude each other: give one of them")
        chosen_day = load_course().day(week, day)
        chosen = chosen_day.task(task)
        tiers = load_hints(chosen_day, chosen)
    counts = kept(COUNTS_FOLDER)
    if reset:
        print_reset(chosen, counts.put(chosen.id, 0))
        return
    shown = num_shown(counts, chosen)
    if show_all:
        shown = NUM_TIERS
    elif not again:
        shown = min(shown + 1, NUM_TIERS)
    if not again:
        counts.put(chosen.id, shown)
    is_whole = show_all or again
    print_hints(chosen_day, chosen, tiers[:shown], first=1 if is_whole else shown)


def num_shown(counts: Kept, task: Task) -> int:
    """How many hints of a task were shown; 0 where the file says nothing that makes sense."""
    shown = counts.read().get(task.id)
    return shown if isinstance(shown, int) and 0 <= shown <= NUM_TIERS else 0


def load_hints(day: Day, task: Task, folder: Path = HINTS) -> tuple[str, ...]:
    """The three hints of a task, from where to look to nearly the answer; ValueError if it has none."""
    file = folder / f"{day.stem}.toml"
    content = load_toml(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for entry in content.get("hints", []):
        if entry["task"] == task.number:
            return tuple(tier.strip("\n") for tier in entry["tiers"])
    raise ValueError(f"week {day.week} day {day.day} task {task.number} has no hints yet")


def print_hints(day: Day, task: Task, tiers: tuple[str, ...], first: int) -> None:
    """The task, then each hint from the first wanted on; bold in a terminal, plain text elsewhere."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"Week {day.week} day {day.day} task {task.number}: {task.title}", style="bold"))
    console.print(Text(", ".join(task.symbols), style="cyan"))
    if first > 1:
        seen = "hint 1" if first == 2 else f"hints 1 to {first - 1}"
        console.print(Text(f"You saw {seen} before: --again shows all.", style="dim"))
    for number, tier in enumerate(tiers[first - 1 :], start=first):
        console.print()
        console.print(Text(f"Hint {number} of {NUM_TIERS}", style="bold"))
        console.print(Text(tier))
    if len(tiers) < NUM_TIERS:
        console.print()
        console.print(Text("Ask again for one more." if tiers else "No hint was shown yet.", style="dim"))


def print_reset(task: Task, was_written: bool) -> None:
    """What the next call will show."""
    if was_written:
        print(f"Forgotten: task {task.id} starts from its first hint again.")
    else:
        print(f"The file of what you saw cannot be written, so task {task.id} stays as it was.")


if __name__ == "__main__":
    run_command(main, "hint")
