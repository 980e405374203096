"""The demo by the three phases of week 2 and by the engine's one budget, then as the simulator predicts it.

pdm run bench budget --budget 32
"""

import sys
from dataclasses import replace
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.rounds import Repeats, Rounds
from benches.speed import machine
from benches.turns import demo_in_turns
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.run.engine_recorder import EngineRecorder
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, request_rows, totals
from tiny_llm import CostModel, SimulatedRequest, Simulator, fit_cost_model

FILE_WIDTH = 100  # of a table that goes to a file or a pipe: nothing is cut off on a slow machine
Figures = dict[str, float]
FIGURES = {
    "longest_itl_s": ("longest gap", "ms", 1e3),
    "itl_p99_s": ("p99 gap", "ms", 1e3),
    "ttft_p50_s": ("median TTFT", "ms", 1e3),
    "output_tokens_per_s": ("output tokens/s", "", 1.0),
    "longest_step_tokens": ("tokens of the longest step", "", 1.0),
    "steps": ("steps", "", 1.0),
}
PREDICTED = ("steps", "ttft_p50_s", "itl_p99_s", "longest_itl_s", "seconds")
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Budget = Annotated[int, typer.Option(min=1, help="Of the engine's step, and of the phases' chunk.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that decode together.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]


def main(
    model: Model = SHIPPED_MODEL,
    budget: Budget = 64,
    batch_size: BatchSize = 4,
    max_tokens: MaxTokens = 48,
    repeats: Repeats = None,
) -> Results:
    """Serve the demo's prompts by both, in turns, and print medians, spread and ratios; then predict a run.

    The costs of a step are fitted to all measured runs but the last; of that one the simulator is told the
    requests and the lengths of their answers, no more.

    Example: pdm run bench budget --budget 32
    """
    with usage_errors():
        phases = RunOptions(model=model, prefill_step=budget, batch_size=batch_size, max_tokens=max_tokens)
        engine = replace(phases, engine="serving", budget=budget, blocks=0)
        rounds = Rounds(repeats)
        runs = demo_in_turns({"three phases": phases, "one budget": engine}, rounds)
        console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        console.print(comparison(runs))
        engine_runs = [run for run in runs.get("one budget", []) if isinstance(run, EngineRecorder)]
        if engine_runs:
            console.print()
            print_prediction(console, engine_runs)
    return Results(rounds)


def figures(recorder: AnyRecorder) -> Figures:
    """What is compared of a run."""
    tokens = [0] * recorder.num_steps
    for event in recorder.events:
        tokens[event.step] += sum(event.num_tokens.values())
    rows = request_rows(recorder)
    ttft = median(row["ttft_s"] for row in rows if row["ttft_s"] is not None)
    return {**totals(recorder), "ttft_p50_s": ttft, "longest_step_tokens": max(tokens)}


def comparison(runs: dict[str, list[AnyRecorder]]) -> Table:
    """A row for each figure: median, least and most of either side, and the ratio of the medians."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", *runs, "ratio"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    all_figures = {side: [figures(run) for run in side_runs] for side, side_runs in runs.items()}
    for key, (name, unit, scale) in FIGURES.items():
        sides = [[run[key] * scale for run in of_side] for of_side in all_figures.values()]
        texts = [f"{median(v):.0f} ({min(v):.0f} to {max(v):.0f}) {unit}".rstrip() for v in sides]
        table.add_row(name, *texts, f"{median(sides[1]) / median(sides[0]):.2f}" if sides[1:] else "")
    return table


def print_prediction(console: Console, runs: list[EngineRecorder]) -> None:
    """Fit the costs to all runs but the last (to the only one), simulate the last and compare."""
    *before, last = runs
    cost = fitted(before or [last])
    console.print(
        f"a step costs {cost.per_step * 1e3:.2f} ms, a token {cost.per_token * 1e6:.0f} µs, "
        f"a key that a query looks at {cost.per_context * 1e9:.1f} ns"
    )
    simulator = simulate(last, cost)
    console.print(f"schedules are {'equal, step for step' if is_same(last, simulator) else 'different'}")
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", "predicted", "measured"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    pairs = predicted(simulator), figures(last)
    for key in PREDICTED:
        texts = [f"{each[key]:.0f}" if key == "steps" else f"{each[key] * 1e3:.0f} ms" for each in pairs]
        table.add_row(FIGURES[key][0] if key in FIGURES else "whole run", *texts)
    console.print(table)


def is_same(run: EngineRecorder, simulator: Simulator) -> bool:
    """Whether engine and simulator computed the same tokens of the same requests in every step."""
    computed = [[(e.sequence.id, *e[1:]) for e in step.scheduled.entries] for step, _ in run.steps]
    return computed == [[(e.sequence.id, *e[1:]) for e in step.output.entries] for step in simulator.steps]


def fitted(runs: list[EngineRecorder]) -> CostModel:
    """The costs of a step on this machine."""
    return fit_cost_model((step.scheduled, seconds) for run in runs for step, seconds in run.steps)


def simulate(run: EngineRecorder, cost: CostModel) -> Simulator:
    """The same requests, all there at the start, by the scheduler alone."""
    simulator = Simulator(run.generator.scheduler.config, cost)
    for request, prompt in zip(run.requests, run.prompts, strict=True):
        sampled = sum(request.prompt_idx in step.sampled for step, _ in run.steps)
        simulator.add(SimulatedRequest(tuple(prompt), sampled))
    while simulator.scheduler.has_work:
        simulator.step()
    return simulator


def predicted(simulator: Simulator) -> Figures:
    """What the simulator says of the run, by the names of `figures`."""
    metrics, gaps = simulator.metrics, simulator.metrics.gaps()
    numbers = {entry.sequence.id for step in simulator.steps for entry in step.output.entries}
    ttft = [time for number in numbers if (time := metrics.ttft(number)) is not None]
    return {
        "steps": len(simulator.steps),
        "ttft_p50_s": median(ttft),
        "itl_p99_s": metrics.gap_percentile(99) or 0.0,
        "longest_itl_s": max(gaps, default=0.0),
        "seconds": simulator.now,
    }
