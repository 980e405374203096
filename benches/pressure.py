"""The demo's prompts under pressure: a pool that is too small, priorities, and a target for the gap.

pdm run bench pressure --blocks 48 --target-ms 15
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.rounds import written
from benches.speed import machine
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.run.runs import read_prompts
from tiny_llm import (
    BlockManager,
    ChunkedPrefillMetrics,
    Engine,
    EngineStep,
    Fcfs,
    LatencyTarget,
    Priority,
    SamplingParams,
    SchedulerConfig,
    Sequence,
    percentile,
)
from tiny_llm.scheduling.policy import Policy

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from tiny_llm import Qwen3Model

BLOCK_SIZE = 16
MAX_SEQ_LEN = 1024
NUM_CLASSES = 3

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Blocks = Annotated[int, typer.Option(min=1, help="Blocks of the pool that is too small, 16 tokens each.")]
TargetMs = Annotated[
    float | None,
    typer.Option(min=0.001, help="Milliseconds that 99 of 100 gaps should not pass: a third table."),
]
Copies = Annotated[int, typer.Option(min=1, help="How often each prompt of the demo is served.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]


@dataclass(frozen=True)
class Side:
    """An engine that is measured: its pool, its policy, its budget."""

    name: str
    blocks: BlockManager
    policy: Policy
    budget: int = 64


@dataclass(frozen=True)
class Run:
    """A side's run: its steps and the seconds of each, and every sequence, in the order of arrival.

    `num_used` is how many blocks were in use after each step.
    """

    side: Side
    steps: list[tuple[EngineStep, float]]
    num_used: list[int]
    metrics: ChunkedPrefillMetrics
    sequences: list[Sequence]

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(seconds for _, seconds in self.steps)

    @property
    def gaps_ms(self) -> list[float]:
        """Milliseconds between two tokens of a stream."""
        return [1e3 * gap for gap in self.metrics.gaps()]

    @property
    def ttft_ms(self) -> list[float]:
        """Milliseconds to the first token, of each request."""
        return [1e3 * (self.metrics.ttft(each.id) or 0.0) for each in self.sequences]

    def steps_to_first_token(self, priority: int) -> float:
        """The median over the requests of one class."""
        return median(self.sampling_steps(each.id)[0] for each in self.sequences if each.priority == priority)

    def sampling_steps(self, request_id: int) -> list[int]:
        """The numbers of the steps that sampled a token for a request, counted from 1."""
        return [number for number, (step, _) in enumerate(self.steps, 1) if request_id in step.sampled]

    @property
    def longest_gap_in_steps(self) -> int:
        """Most steps between two tokens of a stream; 1 if none ever stands still."""
        sampling = [self.sampling_steps(each.id) for each in self.sequences]
        return max(after - before for steps in sampling for before, after in pairwise(steps))

    @property
    def num_computed_again(self) -> int:
        """Tokens that were computed, less those that had to be."""
        computed = sum(step.scheduled.num_tokens for step, _ in self.steps)
        return computed - sum(each.num_tokens - 1 for each in self.sequences)


def main(
    model: Model = SHIPPED_MODEL,
    blocks: Blocks = 48,
    target_ms: TargetMs = None,
    copies: Copies = 2,
    max_tokens: MaxTokens = 48,
) -> None:
    """Serve the demo's prompts twice and print what each way to cope with it does, counted in steps.

    With a target, fixed budgets are compared with a chosen one as well, in milliseconds of this machine.

    Example: pdm run bench pressure --blocks 60 --target-ms 20
    """
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        prompts = read_prompts(None, resolve_checkpoint(model)) * copies
        loaded = load_by_name(model)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)

        def runs(sides: Iterable[Side]) -> list[Run]:
            return list(
                written({s.name: partial(serve, s, loaded, prompts, max_tokens) for s in sides}).values()
            )

        runs([Side("warm-up", BlockManager(blocks, BLOCK_SIZE), Fcfs())])
        print_rows(console, f"A pool of {blocks} blocks of {BLOCK_SIZE}", runs(pools(blocks)), POOL_ROWS)
        print_rows(console, "Steps to the first token, median", runs(orders(blocks)), ORDER_ROWS)
        if target_ms is not None:
            heading = f"A target of {target_ms:g} ms for the gap"
            print_rows(console, heading, runs(targets(blocks, target_ms)), target_rows(target_ms))


def pools(num_blocks: int) -> list[Side]:
    """Enough blocks for all; too few of them, reserved at admission; too few, overcommitted."""
    return [
        Side("enough", BlockManager(8 * num_blocks, BLOCK_SIZE), Fcfs()),
        Side("reserved", BlockManager(num_blocks, BLOCK_SIZE), Fcfs()),
        Side("overcommitted", BlockManager(num_blocks, BLOCK_SIZE, overcommit=True), Fcfs()),
        Side("and 1/10 spared", BlockManager(num_blocks, BLOCK_SIZE, True, watermark=0.1), Fcfs()),
    ]


def orders(num_blocks: int) -> list[Side]:
    """First come first served, some patience, and so much that classes come one after the other."""
    policies: dict[str, Policy] = {
        "by arrival": Fcfs(),
        "patience 6": Priority(6),
        "patience 1000": Priority(1000),
    }
    return [Side(name, BlockManager(8 * num_blocks, BLOCK_SIZE), each) for name, each in policies.items()]


def targets(num_blocks: int, target_ms: float) -> list[Side]:
    """Fixed budgets, and one that is chosen for each step."""
    sides = [
        Side(f"budget {size}", BlockManager(8 * num_blocks, BLOCK_SIZE), Fcfs(), size)
        for size in (16, 64, 256)
    ]
    chosen = LatencyTarget(Fcfs(), target_ms)
    return [*sides, Side("by the target", BlockManager(8 * num_blocks, BLOCK_SIZE), chosen, 256)]


def serve(
    side: Side, loaded: "tuple[Qwen3Model, TokenizerWrapper]", prompts: list[str], max_tokens: int
) -> Run:
    """Serve all prompts, which are there at the start; their classes go round."""
    model, tokenizer = loaded
    config = SchedulerConfig(side.budget, 6)
    max_seq_len = min(MAX_SEQ_LEN, model.config.max_position_embeddings)
    with Engine(model, tokenizer, config, max_seq_len, side.blocks, side.policy) as engine:
        metrics = ChunkedPrefillMetrics()
        for number, prompt in enumerate(prompts):
            params = SamplingParams(max_tokens=max_tokens)
            metrics.record_arrival(engine.add_request(prompt, params, number % NUM_CLASSES), 0.0)
        sequences = list(engine.scheduler.sequences.values())
        start = last = time.perf_counter()
        steps: list[tuple[EngineStep, float]] = []
        num_used = []
        while engine.has_unfinished_requests:
            step = engine.step()
            now = time.perf_counter()
            steps.append((step, now - last))
            last = now
            num_used.append(side.blocks.num_used_blocks)
            for request_id in step.sampled:
                metrics.record_token(request_id, now - start)
    return Run(side, steps, num_used, metrics, sequences)


Row = tuple[str, Callable[[Run], float], str]
"""Its heading, the figure, and how it is written."""

POOL_ROWS: list[Row] = [
    ("steps", lambda run: len(run.steps), "{:.0f}"),
    ("run at once, mean", lambda run: mean(len(s.scheduled.entries) for s, _ in run.steps), "{:.1f}"),
    ("blocks in use, mean", lambda run: mean(run.num_used), "{:.0f}"),
    ("preemptions", lambda run: sum(each.num_preemptions for each in run.sequences), "{:.0f}"),
    ("tokens computed again", lambda run: run.num_computed_again, "{:.0f}"),
    ("longest gap, steps", lambda run: run.longest_gap_in_steps, "{:.0f}"),
    ("tokens a step, mean", lambda run: mean(s.scheduled.num_tokens for s, _ in run.steps), "{:.0f}"),
]
ORDER_ROWS: list[Row] = [
    (f"class {priority}", partial(Run.steps_to_first_token, priority=priority), "{:.0f}")
    for priority in range(NUM_CLASSES)
]


def target_rows(target_ms: float) -> list[Row]:
    """The rows of the last table; the first steps, with which costs are learned, are among them."""
    return [
        ("tokens of a step, mean", lambda run: mean(s.scheduled.num_tokens for s, _ in run.steps), "{:.0f}"),
        ("p99 of the gaps, ms", lambda run: percentile(run.gaps_ms, 99) or 0.0, "{:.1f}"),
        ("gaps over the target, %", lambda run: 100 * mean(gap > target_ms for gap in run.gaps_ms), "{:.1f}"),
        ("median TTFT, ms", lambda run: median(run.ttft_ms), "{:.0f}"),
        ("seconds", lambda run: run.seconds, "{:.2f}"),
    ]


def print_rows(console: Console, heading: str, runs: list[Run], rows: list[Row]) -> None:
    """A table with a column for each run."""
    console.print()
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column(heading, no_wrap=True)
    for run in runs:
        table.add_column(run.side.name, justify="right", no_wrap=True)
    for name, figure, text in rows:
        table.add_row(name, *(text.format(figure(run)) for run in runs))
    console.print(table)
