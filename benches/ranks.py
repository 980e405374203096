"""What a step takes on several ranks of this machine, beside one process, predicted and measured.

pdm run bench ranks --ranks 2
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.experts import PROMPT
from benches.rank_process import BATCHES, MAX_SEQ_LEN, Measured
from benches.rounds import Repeats, Rounds
from benches.speed import machine
from benches.watched import Results
from kernel_runtime.checkpoint import read_json
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.run.ranks import run_ranks
from tiny_llm import ModelConfig, received_bytes, shard_config
from tiny_llm.model.shards import EXCHANGES_OF_ENDS, EXCHANGES_PER_LAYER

Model = Annotated[str, typer.Option(help="A checkpoint folder without experts, or a name of one.")]
Tokens = Annotated[int, typer.Option("--max-tokens", min=2, max=MAX_SEQ_LEN - PROMPT, help="Of an answer.")]
NumRanks = Annotated[int, typer.Option("--ranks", min=2, help="Processes that share the model.")]


def main(
    model: Model = SHIPPED_MODEL,
    num_ranks: NumRanks = 2,
    max_tokens: Tokens = 100,
    repeats: Repeats = None,
) -> Results:
    """Let requests decode in one process and on several ranks, in turns.

    Each measurement starts new processes. All ranks together have as many threads as the one process.
    The prediction adds what all exchanges of a step take at best to the step of one process.

    Example: pdm run bench ranks --ranks 2
    """
    with usage_errors():
        folder = resolve_checkpoint(model)
        config_dict = read_json(folder / "config.json")
        shard_config(config_dict, num_ranks)
        config = ModelConfig.from_dict(config_dict)
        rounds = Rounds(repeats)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        sizes = {"one process": 1, f"{num_ranks} ranks": num_ranks}
        found = rounds.in_turns(sizes, lambda side, _: measure(folder, sizes[side], max_tokens), figures)
        console.print(table(config, num_ranks, *found.values()))
    return Results(rounds)


def measure(folder: Path, num_ranks: int, max_tokens: int) -> Measured:
    """One measurement, in processes of its own."""
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "measured.json"
        command = [sys.executable, "-m", "benches.rank_process", str(folder), str(file), str(max_tokens)]
        code = run_ranks(command, num_ranks) if num_ranks > 1 else subprocess.call(command)
        if code:
            raise ValueError(f"a measurement with {num_ranks} ranks ended with exit code {code}")
        return Measured(**json.loads(file.read_text()))


def figures(measured: Measured) -> Mapping[str, float]:
    """What the medians are of: the steps. Exchanges are shown as they are at best."""
    return {f"step of {batch}": seconds for batch, seconds in measured.step.items()}


def table(config: ModelConfig, num_ranks: int, alone: list[Measured], shared: list[Measured]) -> Table:
    """A row per size of the batch."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in (
        "batch",
        "ms alone",
        "exchanges",
        "KB received",
        "ms at best",
        "predicted",
        "measured",
    ):
        table.add_column(heading, justify="right")
    num_exchanges = EXCHANGES_PER_LAYER * config.num_hidden_layers + EXCHANGES_OF_ENDS + 1
    for batch in map(str, BATCHES):
        step_alone = 1e3 * median(each.step[batch] for each in alone)
        exchanging = 1e3 * min(each.exchanges[batch] for each in shared)
        received = received_bytes(config, num_ranks, int(batch), int(batch))
        table.add_row(
            batch,
            f"{step_alone:.2f}",
            str(num_exchanges),
            f"{received / 1e3:,.0f}",
            f"{exchanging:.2f}",
            f"{step_alone + exchanging:.2f}",
            f"{1e3 * median(each.step[batch] for each in shared):.2f}",
        )
    return table
