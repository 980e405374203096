"""What a step of the scheduler alone takes, without a model, by the kind of blocks and how many wait.

pdm run bench-scheduler --waiting 100 --waiting 10000
"""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.speed import machine
from scripts.errors import usage_errors
from tiny_llm_ref import (
    BlockManager,
    Fcfs,
    LatencyTarget,
    PrefixCachingBlockManager,
    Priority,
    Scheduler,
    SchedulerConfig,
    Sequence,
)
from tiny_llm_ref.serving.blocks import Blocks
from tiny_llm_ref.serving.policy import Policy

BLOCK_SIZE = 16
PROMPT_LENGTHS = range(1, 1 + BLOCK_SIZE)  # as many sequences as any other step begin a block in each
WARM_UP = 32
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


def main(waiting: Waiting = None, running: Running = 256, steps: Steps = 300) -> None:
    """Time schedule and complete, and print the median of each in microseconds.

    Example: pdm run bench-scheduler --running 64 --waiting 1000
    """
    with usage_errors():
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        console.print(f"microseconds of schedule + complete, {running} decode, medians of {steps} steps")
        table = Table(box=None, padding=(0, 1), header_style="bold")
        table.add_column("waiting", no_wrap=True)
        counts = waiting or [100, 1_000, 10_000, 100_000]
        for count in counts:
            table.add_column(f"{count:,}", justify="right", no_wrap=True)
        for name, (make_blocks, make_policy) in MAKERS.items():
            times = [time_steps(make_blocks, make_policy, running, count, steps) for count in counts]
            texts = [f"{1e6 * each[0]:.0f} + {1e6 * each[1]:.0f}" for each in times]
            table.add_row(name, *texts)
        console.print(table)


def time_steps(
    make_blocks: Callable[[int], Blocks | None],
    make_policy: Callable[[], Policy],
    num_running: int,
    num_waiting: int,
    num_steps: int,
) -> tuple[float, float]:
    """Median seconds of `schedule` and of `complete`, while everybody who runs decodes and nobody ends."""
    num_tokens = max(PROMPT_LENGTHS) + WARM_UP + num_steps + 1
    blocks = make_blocks(num_running * -(-num_tokens // BLOCK_SIZE))
    scheduler = Scheduler(
        SchedulerConfig(num_running * max(PROMPT_LENGTHS), num_running), blocks, make_policy()
    )
    for id in range(num_running + num_waiting):
        length = PROMPT_LENGTHS[id % len(PROMPT_LENGTHS)]
        scheduler.add(Sequence(id, range(id, id + length), id % 3, num_tokens))
    measured = [time_step(scheduler) for _ in range(WARM_UP + num_steps)][WARM_UP:]
    return median(each[0] for each in measured), median(each[1] for each in measured)


def time_step(scheduler: Scheduler) -> tuple[float, float]:
    """Seconds of each half of one step; the garbage collector waits."""
    gc.disable()
    start = time.perf_counter()
    output = scheduler.schedule()
    scheduled = time.perf_counter()
    sampled = dict.fromkeys(output.final_ids, 1)
    before = time.perf_counter()
    scheduler.complete(output, sampled)
    end = time.perf_counter()
    gc.enable()
    scheduler.policy.record(output, 0.01)
    return scheduled - start, end - before


if __name__ == "__main__":
    typer.run(main)
