"""Long prompts in chunks, and decoding behind them: time and memory against what must be computed and read.

pdm run bench long --model smollm2 --length 2048 --length 8192
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import mlx.core as mx
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benches.bandwidth import measure_bandwidth
from benches.long_sides import POSITIONS, ROOM, SIDES
from benches.rounds import Repeats, Rounds, itself
from benches.speed import ask, machine, receive, started
from benches.watched import Results
from kernel_runtime.checkpoint import read_json, read_tensors
from scripts.chart import line_chart
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from tiny_llm.model.config import ModelConfig
from tiny_llm.model.roofline import cache_bytes_per_token, decode_bytes_per_token

WARM_UP = 512
FITTED = 2048  # tokens: the cost of chunks is known from prompts up to here
STEPS = 32

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Lengths = Annotated[list[int], typer.Option("--length", min=1, help="Tokens of a prompt; may be repeated.")]
Chunk = Annotated[int, typer.Option(min=1, help="Tokens of a chunk.")]
Sides = Annotated[list[str] | None, typer.Option("--side", help="Only this one; may be repeated.")]
Output = Annotated[Path | None, typer.Option(help="Folder for long.json and long.svg.")]


@dataclass(frozen=True)
class Run:
    """One prompt and the decodes behind it: seconds of each chunk and of each decode, bytes at most.

    There are no chunks where the cache was filled instead.
    """

    chunks: list[float]
    decodes: list[float]
    peak_bytes: int | None

    @property
    def prefill(self) -> float:
        """Seconds of the whole prompt."""
        return sum(self.chunks)

    @property
    def rate(self) -> float:
        """Decoded tokens per second; steps of one run depend on each other and make one figure."""
        return 1 / median(self.decodes)

    @property
    def figures(self) -> dict[str, float]:
        """Those whose medians count."""
        return {"decode": self.rate, **({"prefill": self.prefill} if self.chunks else {})}


@dataclass(frozen=True)
class Bytes:
    """What a decode has to read: the weights, and for each token of context its keys and values."""

    weights: int
    per_token: int

    def at(self, side: str, length: int) -> float:
        """Of one token behind so many; llama.cpp keeps keys and values in 16 bits."""
        return self.weights + length * self.per_token / (2 if side == "llama.cpp" else 1)


def main(
    model: Model = SHIPPED_MODEL,
    length: Lengths = [256, 512, 1024],  # noqa: B006 - typer copies it
    chunk: Chunk = 512,
    side: Sides = None,
    repeats: Repeats = None,
    output: Output = None,
) -> Results:
    """Read prompts of some lengths in chunks and decode behind them, each engine in a process of its own.

    Example: pdm run bench long --model smollm2 --length 8192 --side blocks --side llama.cpp
    """
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    rounds = Rounds(repeats)
    with usage_errors(), stretched(resolve_checkpoint(model), max(length) + ROOM) as checkpoint:
        names = side or list(SIDES)
        if unknown := [name for name in names if name not in SIDES]:
            raise ValueError(f"there is no side {unknown[0]!r}: choose from {', '.join(SIDES)}")
        sizes = bytes_of(checkpoint)
        bandwidth = median(
            rounds.in_turns(["bandwidth"], lambda *_: measure_bandwidth(), itself)["bandwidth"]
        )
        runs = measure_all(names, checkpoint, sorted(length), chunk, rounds, console)
    console.print(f"{model}, chunks of {chunk}; {', '.join(map(str, machine().values()))}", soft_wrap=True)
    console.print(f"memory is read at {bandwidth / 1e9:.3g} GB/s; {sizes.weights / 1e6:.4g} MB of weights")
    console.print(table(runs, chunk, sizes, bandwidth))
    lines = {name: {n: rates(each) for n, each in by_length.items()} for name, by_length in runs.items()}
    chart = line_chart(f"{model}: decode by context", "tokens of context", "tokens per second", lines)
    data = {"model": model, "machine": machine(), "bandwidth": bandwidth, "chart": chart}
    return Results(rounds, "long", data, chart)


@contextmanager
def stretched(checkpoint: Path, num_positions: int) -> Iterator[Path]:
    """The checkpoint with room for so many positions, whatever it was trained for."""
    with tempfile.TemporaryDirectory() as folder:
        for file in checkpoint.iterdir():
            if file.name != "config.json":
                (Path(folder) / file.name).symlink_to(file.resolve())
        config = read_json(checkpoint / "config.json")
        config[POSITIONS] = max(config[POSITIONS], num_positions)
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield Path(folder)


def bytes_of(checkpoint: Path) -> Bytes:
    """What this course's engine reads."""
    config, tensors = ModelConfig.from_dict(read_json(checkpoint / "config.json")), read_tensors(checkpoint)
    dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else tensors["model.norm.weight"].dtype
    return Bytes(decode_bytes_per_token(config, tensors, dtype), cache_bytes_per_token(config, dtype))


def measure_all(
    names: list[str], checkpoint: Path, lengths: list[int], chunk: int, rounds: Rounds, console: Console
) -> dict[str, dict[int, list[Run]]]:
    """Runs by side and length, the sides in turns."""
    with ExitStack() as stack:
        processes = {}
        for name in names:
            process = stack.enter_context(started(name, checkpoint, "benches.long_sides", str(chunk)))
            answer = receive(process)
            if "error" in answer:
                console.print(f"without {name}: {answer['error']}", style="yellow", soft_wrap=True)
            else:
                processes[name] = process
        runs: dict[str, dict[int, list[Run]]] = {name: {} for name in processes}
        for n in lengths:

            def run(name: str, turn: int, n: int = n) -> Run:
                num_tokens = n if turn else min(n, WARM_UP)
                return Run(**ask(processes[name], {"num_tokens": num_tokens, "num_steps": STEPS}))

            by_side = rounds.in_turns(processes, run, lambda run: run.figures, f"{n} tokens")
            for name, measured in by_side.items():
                runs[name][n] = measured
    return runs


def table(runs: dict[str, dict[int, list[Run]]], chunk: int, sizes: Bytes, bandwidth: float) -> Table:
    """A row for each side and length."""
    result = Table(box=None, header_style="bold", padding=(0, 1))
    for heading in ("", "tokens", "prefill, s", "to model", "memory", "decode, tokens/s", "of limit"):
        result.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, by_length in runs.items():
        for n, measured in by_length.items():
            rate = median(rates(measured))
            result.add_row(
                name,
                f"{n:,}",
                spread([run.prefill for run in measured]) if measured[0].chunks else "-",
                against_cost(by_length, n, chunk),
                memory(measured, n * sizes.per_token),
                spread(rates(measured)),
                f"{rate * sizes.at(name, n) / bandwidth:.0%}",
            )
    return result


def against_cost(by_length: dict[int, list[Run]], length: int, chunk: int) -> str:
    """Seconds of the chunks behind the first FITTED tokens, as a share of what those before them predict.

    The cost of a chunk is a line in the number of keys before it: its products cost the same everywhere, and
    its attention looks at every key.
    """
    medians = [median(times) for times in zip(*(run.chunks for run in by_length[length]), strict=True)]
    num_known = FITTED // chunk
    if len(medians) <= num_known or num_known < 2:
        return "-"
    known = np.arange(num_known) * chunk
    slope, start = np.polyfit(known, medians[:num_known], 1)
    later = np.arange(num_known, len(medians)) * chunk
    return f"{sum(medians[num_known:]) / sum(start + slope * later):.2f}"


def memory(runs: list[Run], least: int) -> str:
    """The most that was held, and its ratio to the keys and values alone."""
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return f"{median(peaks) / 1e6:.0f} MB\n{median(peaks) / least:.2f}x" if peaks else "-"


def rates(runs: list[Run]) -> list[float]:
    """Decoded tokens per second of each run."""
    return [run.rate for run in runs]


def spread(values: list[float]) -> str:
    """Median, below it the least and the most."""
    return f"{median(values):.3g}\n{min(values):.3g} to {max(values):.3g}"
