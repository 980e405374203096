"""Serving under a load that does not wait: the engine against week 2, against whole prompts and mlx-lm.

pdm run bench serving --requests 64 --output charts
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benches.rounds import Repeats, Rounds
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Requests = Annotated[int, typer.Option(min=4, help="Requests of a run.")]
Budget = Annotated[int, typer.Option(min=1, help="Most tokens of a step, or of a chunk.")]
PrefillBudget = Annotated[
    int | None,
    typer.Option(min=1, help="That of the engine while nothing decodes; the longest prompt unless given."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that run together.")]
Rate = Annotated[
    float | None, typer.Option(help="Arrivals per second; unless given, a share of what the engine can do.")
]
LoadShare = Annotated[float, typer.Option("--load", help="That share.")]
TtftTarget = Annotated[float | None, typer.Option(help="Of a good request, in ms; from measured costs.")]
ItlTarget = Annotated[float | None, typer.Option(help="Of each gap, in ms; from measured costs.")]
Temperature = Annotated[
    float, typer.Option(min=0, help="Of all requests; above 0 they are sampled, with a top_p of 0.95.")
]
Limit = Annotated[float, typer.Option(min=1, help="Seconds after which a run is cut off.")]
Sides = Annotated[list[str] | None, typer.Option("--side", help="Only this one; may be repeated.")]
Seed = Annotated[int, typer.Option(help="Of the load, which is the same in every round.")]
Output = Annotated[Path | None, typer.Option(help="Folder for serving.json and serving.svg.")]


def main(
    model: Model = SHIPPED_MODEL,
    requests: Requests = 48,
    repeats: Repeats = None,
    budget: Budget = 96,
    prefill_budget: PrefillBudget = None,
    batch_size: BatchSize = 8,
    rate: Rate = None,
    load: LoadShare = 0.8,
    ttft_target: TtftTarget = None,
    itl_target: ItlTarget = None,
    temperature: Temperature = 0.0,
    limit: Limit = 20.0,
    side: Sides = None,
    seed: Seed = 0,
    output: Output = None,
) -> Results:
    """Serve Poisson arrivals of long and short prompts by each side, in turns; then find the capacity.

    Arrivals do not wait for answers. All sides get the same requests at the same moments; mlx-lm also with
    its own kernels, which is a comparison of kernels. Capacity is found on the simulator, with the costs of
    the steps that were measured, and confirmed by runs.

    Example: pdm run bench serving --side "one budget" --side "whole prompts"
    """
    with usage_errors():
        from benches.serving_runs import Settings, measure_all

        settings = Settings(
            model=model,
            num_requests=requests,
            repeats=repeats,
            budget=budget,
            prefill_budget=prefill_budget,
            batch_size=batch_size,
            rate=rate,
            load=load,
            ttft_target=ttft_target,
            itl_target=itl_target,
            temperature=temperature,
            limit=limit,
            sides=tuple(side or ()),
            seed=seed,
        )
        rounds = Rounds(repeats)
        result = measure_all(settings, resolve_checkpoint(model), rounds)
    from benches.serving_report import chart, print_report

    print_report(result, Console(highlight=False))
    return Results(rounds, "serving", result.as_json(), chart(result))
