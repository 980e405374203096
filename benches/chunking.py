"""The demo chunked and unchunked, alternating in one process: gaps and throughput, as ratios of medians.

pdm run bench-chunking --model smollm2 --repeats 3
"""

import platform
from importlib.metadata import version
from statistics import median
from typing import Annotated, Any

import typer
from rich.progress import track

from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.demo import make_recorder, read_prompts, serve
from scripts.errors import usage_errors
from scripts.run_report import totals

FIGURES = {
    "longest_itl_s": "longest gap (s)",
    "itl_p99_s": "p99 gap (s)",
    "output_tokens_per_s": "output tokens/s",
}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
PrefillStep = Annotated[int, typer.Option(min=1, help="Chunk size of the chunked side.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that decode together.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each side.")]


def main(
    model: Model = SHIPPED_MODEL,
    prefill_step: PrefillStep = 64,
    batch_size: BatchSize = 4,
    max_tokens: MaxTokens = 48,
    repeats: Repeats = 5,
) -> None:
    """Serve the demo's prompts in chunks and whole, in turns, and print medians, spread and ratios."""
    with usage_errors():
        settings = {
            "model": model,
            "prefill_step": prefill_step,
            "batch_size": batch_size,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": 0,
        }
        report(settings, measure(settings, repeats), repeats)


def measure(settings: dict[str, Any], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Totals of each run by side, the first pair left out as warm-up."""
    from scripts.models import load_by_name

    checkpoint = resolve_checkpoint(settings["model"])
    prompts = read_prompts(None, checkpoint)
    model, tokenizer = load_by_name(settings["model"])
    runs: dict[str, list[dict[str, Any]]] = {"chunked": [], "whole": []}
    sides = {"chunked": settings, "whole": {**settings, "prefill_step": None}}
    for repeat in track(range(repeats + 1), description="runs"):
        for side, side_settings in sides.items():
            recorder = make_recorder(side_settings, model, tokenizer, prompts)
            with recorder.generator:
                serve(recorder)
            if repeat:
                runs[side].append(totals(recorder))
    return runs


def report(settings: dict[str, Any], runs: dict[str, list[dict[str, Any]]], repeats: int) -> None:
    """Machine, versions, then a line a figure: medians, spread, ratio."""
    print(
        f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, mlx {version('mlx')}"
    )
    print(f"{settings}, {repeats} runs of each side")
    for key, name in FIGURES.items():
        sides = {side: [run[key] for run in side_runs] for side, side_runs in runs.items()}
        texts = [f"{side} {median(v):.4g} ({min(v):.4g} to {max(v):.4g})" for side, v in sides.items()]
        ratio = median(sides["chunked"]) / median(sides["whole"])
        print(f"{name:18} {'  '.join(texts)}  ratio {ratio:.2f}")


if __name__ == "__main__":
    typer.run(main)
