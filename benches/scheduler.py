"""What a step of the scheduler alone takes, without a model, by the kind of blocks and how many wait.

pdm run bench scheduler --waiting 100 --waiting 10000
"""

import gc
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benches.rounds import Rounds, written
from benches.speed import machine
from benches.watched import Results
from scripts.chart import bar_chart
from scripts.errors import usage_errors
from tiny_llm import (
    BlockManager,
    Fcfs,
    LatencyTarget,
    PrefixCachingBlockManager,
    Priority,
    Scheduler,
    SchedulerConfig,
    Sequence,
)
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.scheduling.policy import Policy

BLOCK_SIZE = 16
PROMPT_LENGTHS = range(1, 1 + BLOCK_SIZE)  # as many sequences as in any other step begin a block in each
STEPS_IN_A_ROW = 25
WARM_UP = 2 * STEPS_IN_A_ROW
MAKERS: dict[str, tuple[Callable[[int], Blocks | None], Callable[[], Policy]]] = {
    "no blocks": (lambda num_blocks: None, Fcfs),
    "BlockManager": (BlockManager, Fcfs),
    "PrefixCachingBlockManager": (PrefixCachingBlockManager, Fcfs),
    "BlockManager, Priority": (BlockManager, Priority),
    "BlockManager, LatencyTarget": (BlockManager, lambda: LatencyTarget(Fcfs(), 20.0)),
}
"""What is timed: the blocks, given how many, and the policy."""

Waiting = Annotated[list[int] | None, typer.Option(min=0, help="Sequences that wait; may be given again.")]
Running = Annotated[int, typer.Option(min=1, help="Sequences that run, all in decode.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps that are timed.")]
Output = Annotated[Path | None, typer.Option(help="Folder for scheduler.json and scheduler.svg.")]


@dataclass
class Timed:
    """A scheduler whose steps are timed, and the microseconds that each half of them took."""

    name: str
    num_waiting: int
    scheduler: Scheduler
    schedule_us: list[float] = field(default_factory=list)
    complete_us: list[float] = field(default_factory=list)

    @property
    def medians(self) -> tuple[float, float]:
        """Of both halves, without the first steps."""
        return median(self.schedule_us[WARM_UP:]), median(self.complete_us[WARM_UP:])

    @property
    def medians_of_turns(self) -> list[float]:
        """Of whole steps, for each turn after the first steps."""
        totals = [a + b for a, b in zip(self.schedule_us, self.complete_us, strict=True)][WARM_UP:]
        return [median(totals[i : i + STEPS_IN_A_ROW]) for i in range(0, len(totals), STEPS_IN_A_ROW)]

    def __str__(self) -> str:
        turns = self.medians_of_turns
        return "{:.0f} + {:.0f}\n".format(*self.medians) + f"{min(turns):.0f} to {max(turns):.0f}"


def main(
    waiting: Waiting = None, running: Running = 256, steps: Steps = 300, output: Output = None
) -> Results:
    """Time schedule and complete, all schedulers in turns, and print the medians in microseconds.

    Example: pdm run bench scheduler --running 64 --waiting 1000
    """
    with usage_errors():
        counts = waiting or [100, 1_000, 10_000, 100_000]
        names = written({name: partial(try_step, name) for name in MAKERS})
        rows = [[timed(name, running, count, steps) for count in counts] for name in names]
        measure([each for row in rows for each in row], WARM_UP + steps)
    console = Console(highlight=False)
    console.print(", ".join(map(str, machine().values())), soft_wrap=True)
    console.print(
        f"microseconds of schedule + complete, {running} decode, medians of {steps} steps in turns; "
        f"below, the least and the most of a turn of {STEPS_IN_A_ROW} steps",
        soft_wrap=True,
    )
    console.print(table_of(rows, counts))
    return results_of(rows, running)


def timed(name: str, num_running: int, num_waiting: int, num_steps: int) -> Timed:
    """A scheduler with so many sequences, of which none ends before the last step."""
    make_blocks, make_policy = MAKERS[name]
    num_tokens = max(PROMPT_LENGTHS) + WARM_UP + num_steps + 1
    blocks = make_blocks(num_running * -(-num_tokens // BLOCK_SIZE))
    config = SchedulerConfig(num_running * max(PROMPT_LENGTHS), num_running)
    scheduler = Scheduler(config, blocks, make_policy())
    for id in range(num_running + num_waiting):
        length = PROMPT_LENGTHS[id % len(PROMPT_LENGTHS)]
        scheduler.add(Sequence(id, range(id, id + length), id % 3, num_tokens))
    return Timed(name, num_waiting, scheduler)


def try_step(name: str) -> None:
    """One step of a small scheduler."""
    time_step(timed(name, 1, 1, 1))


def measure(all_timed: Items[Timed], num_steps: int) -> None:
    """Time that many steps of each, some in a row and then of the next; the garbage collector waits."""
    turns = [min(STEPS_IN_A_ROW, num_steps - i) for i in range(0, num_steps, STEPS_IN_A_ROW)]
    gc.freeze()
    for length in track(turns, "steps in turns", console=Console(stderr=True), transient=True):
        for each in all_timed:
            for _ in range(length):
                time_step(each)


def time_step(timed: Timed) -> None:
    """One step, each half of it timed."""
    scheduler = timed.scheduler
    gc.disable()
    start = time.perf_counter()
    output = scheduler.schedule()
    scheduled = time.perf_counter()
    # Not from `final_ids`: to find out who is final is a part of `complete`, and is timed there.
    sampled = {entry.sequence.id: 1 for entry in output.entries if entry.is_final}
    before = time.perf_counter()
    scheduler.complete(output, sampled)
    end = time.perf_counter()
    gc.enable()
    scheduler.policy.record(output, 0.01)
    timed.schedule_us.append(1e6 * (scheduled - start))
    timed.complete_us.append(1e6 * (end - before))


def table_of(rows: Items[Items[Timed]], counts: Items[int]) -> Table:
    """A row for each kind, a column for each number that waits."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("waiting", no_wrap=True)
    for count in counts:
        table.add_column(f"{count:,}", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row[0].name, *map(str, row))
    return table


def results_of(rows: Items[Items[Timed]], num_running: int) -> Results:
    """All times, the medians of whole steps as bars, and as series those of each turn."""
    content = [
        {
            "name": each.name,
            "waiting": each.num_waiting,
            "schedule_us": each.schedule_us[WARM_UP:],
            "complete_us": each.complete_us[WARM_UP:],
        }
        for row in rows
        for each in row
    ]
    groups = {
        row[0].name: {f"{each.num_waiting:,} waiting": each.medians_of_turns for each in row} for row in rows
    }
    title = f"microseconds of a step of the scheduler, {num_running} decode"
    series = {
        ("", each.name, f"{each.num_waiting:,} waiting"): each.medians_of_turns
        for row in rows
        for each in row
    }
    data = {"machine": machine(), "running": num_running, "times": content}
    return Results(Rounds(series=series), "scheduler", data, bar_chart(title, groups))
