"""Prefill and decode of this course's engine against others, in turns in one run: medians, spread, ratios.

pdm run bench --model smollm2 --repeats 5
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benches.engines import ENGINES, ENVIRONMENTS
from benches.rounds import Repeats, Rounds, itself
from benches.watched import Results
from scripts.chart import bar_chart
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.hardware.processor import num_cores, processor
from scripts.learn.speeds import keep_speeds, print_speeds

BASELINE = "mlx-lm as installed"
SLOW_STEPS, SLOW_WARM_UP = 4, 8  # steps of decoding and tokens to warm up with, for engines that are slow
Workload = dict[str, Any]
Workloads = dict[str, Workload]
WORKLOADS: Workloads = {
    "prefill of 512": {"work": "prefill", "num_tokens": 512, "batch_size": 1, "num_steps": 0},
    "decode alone": {"work": "decode", "num_tokens": 8, "batch_size": 1, "num_steps": 24},
    "decode of 8": {"work": "decode", "num_tokens": 8, "batch_size": 8, "num_steps": 16},
    "decode of 32": {"work": "decode", "num_tokens": 8, "batch_size": 32, "num_steps": 8},
}
OWN_REPEATS = 3
OWN_WORKLOADS: Workloads = {  # of the learner's package, which has no kernels at first
    "prefill": {"work": "prefill", "num_tokens": 128, "batch_size": 1, "num_steps": 0},
    "decode": {"work": "decode", "num_tokens": 16, "batch_size": 1, "num_steps": 12},
    "8 requests": {"work": "serve", "num_tokens": 16, "batch_size": 8, "num_steps": 12},
}
SLOW = (
    "mlx-lm as installed",
    "mlx-lm with OpenBLAS",
    "tiny-llm, no cache",
    "tiny-llm, 2.1 cache",
    "tiny-llm, 2.2 packed",
)

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Engines = Annotated[list[str] | None, typer.Option("--engine", help="Only this one; may be repeated.")]
Output = Annotated[Path | None, typer.Option(help="Folder for speed.json and speed.svg.")]
Figures = dict[str, dict[str, list[float]]]


def main(
    model: Model = SHIPPED_MODEL,
    repeats: Repeats = None,
    engine: Engines = None,
    output: Output = None,
    mine: bool = False,
) -> Results:
    """Measure tokens per second of every engine that is installed here, the days of week 2 among them.

    The learner's package is measured alone and in seconds, unless engines are named.

    Example: pdm run bench --model smollm2 --engine tiny-llm --engine "mlx-lm as installed"
    """
    console = Console(highlight=False)
    with usage_errors():
        names = engine or (["tiny-llm"] if mine else list(ENGINES))
        if unknown := [name for name in names if name not in ENGINES]:
            raise ValueError(f"there is no engine {unknown[0]!r}: choose from {', '.join(ENGINES)}")
        is_short = mine and not engine
        rounds = Rounds(OWN_REPEATS if is_short and repeats is None else repeats)
        workloads = OWN_WORKLOADS if is_short else WORKLOADS
        figures = measure_all(names, resolve_checkpoint(model), workloads, rounds, console)
    console.print(f"{model}; {', '.join(map(str, machine().values()))}")
    console.print(table(figures))
    if is_short and model == SHIPPED_MODEL:
        import tiny_llm

        medians = {workload: median(of_engine[names[0]]) for workload, of_engine in figures.items()}
        keep_speeds(Path(str(tiny_llm.__file__)).parent, medians)
        print_speeds(console)
    result = {"model": model, "machine": machine(), "tokens_per_s": figures}
    return Results(rounds, "speed", result, chart(model, figures))


def measure_all(
    names: list[str], checkpoint: Path, workloads: Workloads, rounds: Rounds, console: Console
) -> Figures:
    """Tokens per second by workload and engine; the first run of each is left out as warm-up."""
    figures: Figures = {}
    with ExitStack() as stack:
        processes = {}
        for name in names:
            process = stack.enter_context(started(name, checkpoint))
            answer = receive(process)
            if "error" in answer:
                if len(names) == 1:
                    raise ValueError(f"{name} cannot be measured: {answer['error']}")
                console.print(f"without {name}: {answer['error']}", style="yellow", soft_wrap=True)
            else:
                processes[name] = process
        for workload, request in workloads.items():
            figures[workload] = rounds.in_turns(
                processes,
                partial(measured, processes, request),
                itself,
                workload,
            )
    return figures


def measured(
    processes: Mapping[str, "subprocess.Popen[str]"], workload: Workload, name: str, turn: int
) -> float:
    """Tokens a second of one run; a slow engine warms up on less, and decodes less."""
    request = dict(workload)
    if name in SLOW:
        request["num_steps"] = min(request["num_steps"], SLOW_STEPS)
        if not turn:
            request["num_tokens"] = SLOW_WARM_UP
    return tokens_of(request) / float(ask(processes[name], request)["seconds"])


@contextmanager
def started(
    name: str, checkpoint: Path, module: str = "benches.engines", *more: str
) -> Iterator["subprocess.Popen[str]"]:
    """An engine in a process of its own, ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, name, str(checkpoint), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT), **ENVIRONMENTS.get(name, {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: "subprocess.Popen[str]", request: dict[str, Any]) -> dict[str, Any]:
    """One measurement."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return receive(process)


def receive(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next answer; an engine that died is an error."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ValueError(f"the engine {process.args[3]!r} ended: the lines above say why")  # type: ignore[index]
    answer: dict[str, Any] = json.loads(line)
    return answer


def tokens_of(request: dict[str, Any]) -> int:
    """How many tokens a measurement computes."""
    if request["work"] == "prefill":
        return int(request["num_tokens"])
    return int(request["batch_size"] * request["num_steps"])


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    packages = {name: version(name) for name in ("mlx", "mlx-lm")}
    return {
        "processor": processor(),
        "cores": f"{num_cores()} cores",
        "system": platform.system(),
        "python": f"Python {platform.python_version()}",
        **{name: f"{name} {number}" for name, number in packages.items()},
    }


def table(figures: Figures) -> Table:
    """Medians of tokens per second, spread, and the ratio to mlx-lm as installed."""
    result = Table(box=None, header_style="bold", padding=(0, 1))
    result.add_column("tokens/s", no_wrap=True)
    for workload in figures:
        result.add_column(workload, justify="right")
    for name in next(iter(figures.values())):
        result.add_row(name, *(cell(engines, name) for engines in figures.values()))
    return result


def cell(engines: dict[str, list[float]], name: str) -> str:
    """Median, smallest and largest, ratio."""
    rates = engines[name]
    ratio = f" {median(rates) / median(engines[BASELINE]):.3g}x" if BASELINE in engines else ""
    middle, least, most = (
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in (median(rates), min(rates), max(rates))
    )
    return f"{middle}{ratio}\n{least} to {most}"


def chart(model: str, figures: Figures) -> dict[str, Any]:
    """Bars for every engine."""
    return bar_chart(f"{model}: tokens per second", figures)
