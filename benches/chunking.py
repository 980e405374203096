"""The demo chunked and unchunked, alternating in one process: gaps and throughput, as ratios of medians.

pdm run bench chunking --model smollm2

With --sweep: a long prompt that arrives while others decode, by chunk size.
"""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benches import chunk_sweep
from benches.load import take, token_stream
from benches.rounds import Repeats, Rounds
from benches.speed import machine
from benches.turns import demo_in_turns
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, totals

FIGURES = {
    "longest_itl_s": "longest gap (s)",
    "itl_p99_s": "p99 gap (s)",
    "output_tokens_per_s": "output tokens/s",
}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
PrefillStep = Annotated[int, typer.Option(min=1, help="Chunk size of the chunked side.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that decode together.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Sweep = Annotated[bool, typer.Option("--sweep", help="One long prompt beside decodes, by chunk size.")]
PromptTokens = Annotated[int, typer.Option(min=16, help="Of the sweep: tokens of the long prompt.")]
Output = Annotated[Path | None, typer.Option(help="Of the sweep: folder for chunking.json and chunking.svg.")]


def main(
    model: Model = SHIPPED_MODEL,
    prefill_step: PrefillStep = 64,
    batch_size: BatchSize = 4,
    max_tokens: MaxTokens = 48,
    repeats: Repeats = None,
    sweep: Sweep = False,
    prompt_tokens: PromptTokens = 1024,
    output: Output = None,
) -> Results:
    """Serve the demo's prompts in chunks and whole, in turns, and print medians, spread and ratios.

    With --sweep: while others decode in every slot, one long prompt arrives; for each chunk size its time to
    first token, the longest gap of the others, the tokens they got meanwhile, and peak memory.

    Example: pdm run bench chunking --sweep --output charts
    """
    with usage_errors():
        if sweep:
            return run_sweep(model, prompt_tokens, batch_size, Rounds(repeats))
        if output is not None:
            raise ValueError("--output writes what --sweep measures: give both")
        chunked = RunOptions(
            model=model, prefill_step=prefill_step, batch_size=batch_size, max_tokens=max_tokens
        )
        rounds = Rounds(repeats)
        runs = demo_in_turns({"chunked": chunked, "whole": replace(chunked, no_chunking=True)}, rounds)
        report(chunked.settings(), runs)
        return Results(rounds)


def run_sweep(model: str, prompt_tokens: int, num_decodes: int, rounds: Rounds) -> Results:
    """Measure and print the table."""
    from scripts.checkpoints.models import load_by_name

    loaded, tokenizer = load_by_name(model)
    prompt_ids = list(take(token_stream(model, tokenizer), 0, prompt_tokens))
    runs = chunk_sweep.sweep(loaded, prompt_ids, num_decodes, rounds)
    console = Console(highlight=False)
    title = f"{model}: a prompt of {prompt_tokens} tokens while {num_decodes} decode, by chunk size"
    console.print(title, soft_wrap=True)
    console.print(", ".join(map(str, machine().values())), soft_wrap=True)
    console.print(chunk_sweep.sweep_table(runs))
    result = {
        "model": model,
        "prompt_tokens": prompt_tokens,
        "decodes": num_decodes,
        "machine": machine(),
        "runs": chunk_sweep.as_json(runs),
    }
    return Results(rounds, "chunking", result, chunk_sweep.sweep_chart(title, runs))


def report(settings: dict[str, Any], runs: dict[str, list[AnyRecorder]]) -> None:
    """Machine, versions, then a line a figure: medians, spread, ratio."""
    print(", ".join(map(str, machine().values())))
    given = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    print(given)
    all_totals = {side: [totals(run) for run in side_runs] for side, side_runs in runs.items()}
    for key, name in FIGURES.items():
        sides = {side: [run[key] for run in side_totals] for side, side_totals in all_totals.items()}
        texts = [f"{side} {median(v):.4g} ({min(v):.4g} to {max(v):.4g})" for side, v in sides.items()]
        ratio = median(sides["chunked"]) / median(sides["whole"])
        print(f"{name:18} {'  '.join(texts)}  ratio {ratio:.2f}")
