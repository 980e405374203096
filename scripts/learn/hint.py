"""Show the hints of a task, one more each time it is asked."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scripts.checkpoints.files import cache_dir
from scripts.course import COURSE, ROOT, Day, Task, load_course
from scripts.errors import usage_errors
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


@dataclass(frozen=True)
class Counts:
    """How many hints of each task were shown, by `Task.id`, in a file that may be missing or damaged."""

    file: Path

    def of(self, task: Task) -> int:
        """Number shown, 0 where the file says nothing that makes sense."""
        shown = self._read().get(task.id)
        return shown if isinstance(shown, int) and 0 <= shown <= NUM_TIERS else 0

    def remember(self, task: Task, shown: int) -> bool:
        """Write a task's number, and say whether that worked."""
        counts = {**self._read(), task.id: shown}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(counts, indent=1, sort_keys=True) + "\n")
        except OSError:
            return False
        return True

    def _read(self) -> Mapping[str, object]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


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
    counts = Counts(counts_file())
    if reset:
        print_reset(chosen, counts.remember(chosen, 0))
        return
    shown = counts.of(chosen)
    if show_all:
        shown = NUM_TIERS
    elif not again:
        shown = min(shown + 1, NUM_TIERS)
    if not again:
        counts.remember(chosen, shown)
    is_whole = show_all or again
    print_hints(chosen_day, chosen, tiers[:shown], first=1 if is_whole else shown)


def counts_file() -> Path:
    """The file of this clone of the course, so that another one starts from the first hints."""
    return cache_dir() / COUNTS_FOLDER / f"{hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]}.json"


def load_hints(day: Day, task: Task, folder: Path = HINTS) -> tuple[str, ...]:
    """The three hints of a task, from where to look to nearly the answer; ValueError if it has none."""
    file = folder / f"week_{day.week}_day_{day.day}.toml"
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


def write_atomically(file: Path, text: str) -> None:
    """Replace a file at once, so that a reader finds the old content or the new; OSError if it cannot."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    typer.run(main)
