"""The server over HTTP: the highest rate of requests that keeps its limits, and what happens at twice that.

pdm run bench server --seconds 10 --gap-ms 50
"""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

import httpx2
import typer
from rich.console import Console
from rich.table import Table

from benches.load import Load, LoadRequest, mixed_load, token_stream
from benches.speed import machine
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.packages import MINE, OF_LEARNER
from tiny_llm_ref import percentile
from tiny_llm_ref.serving.server.capacity import highest_rate, poisson_arrivals

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Seconds = Annotated[float, typer.Option(min=0.5, help="How long requests arrive at each rate.")]
GapMs = Annotated[float, typer.Option(min=1, help="Milliseconds that 99 of 100 gaps must not pass.")]
TtftMs = Annotated[float, typer.Option(min=1, help="Milliseconds that the median TTFT must not pass.")]
Highest = Annotated[float, typer.Option(min=2, help="No higher rate is tried.")]
Queue = Annotated[int, typer.Option(min=0, help="Room in the queue when twice as many arrive.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the arrivals and the prompts.")]

LOWEST, PRECISION = 2.0, 0.1
STARTUP_SECONDS = 60
FULL = 429


@dataclass
class Outcome:
    """What a client saw of its request: status, seconds until the first token, gaps between the others."""

    status: int = 0
    ttft: float = math.inf
    gaps: list[float] = field(default_factory=list)
    retry_after: float = 0.0


@dataclass
class Run:
    """All requests of a rate."""

    rate: float
    outcomes: list[Outcome]

    @property
    def answered(self) -> list[Outcome]:
        """Those that got an answer."""
        return [outcome for outcome in self.outcomes if outcome.status == 200]

    @property
    def num_refused(self) -> int:
        """Those that the server had no room for."""
        return sum(outcome.status == FULL for outcome in self.outcomes)

    @property
    def gap_ms(self) -> float:
        """The 99th percentile of all gaps, in milliseconds."""
        return 1e3 * (percentile([gap for outcome in self.answered for gap in outcome.gaps], 99) or 0.0)

    @property
    def ttft_ms(self) -> float:
        """The median time to the first token, in milliseconds."""
        return 1e3 * median([outcome.ttft for outcome in self.answered] or [0.0])


def main(
    model: Model = SHIPPED_MODEL,
    seconds: Seconds = 4.0,
    gap_ms: GapMs = 50.0,
    ttft_ms: TtftMs = 200.0,
    highest: Highest = 64.0,
    queue: Queue = 16,
    seed: Seed = 0,
) -> None:
    """Send requests at random moments to `pdm run serve`, whether or not it keeps up, and find its capacity.

    Prompts have 8 to 48 tokens, a quarter of them 384 to 768, and answers 16 to 48. A rate is sustained if 99
    of 100 gaps and the median TTFT keep their limits, and no request is refused.

    Example: pdm run bench server --seconds 10 --ttft-ms 500
    """
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        stream = token_stream(model, load_by_name(model)[1])
        runs: list[Run] = []

        def meets(rate: float) -> bool:
            run = run_at(url, model, stream, rate, seconds, seed)
            runs.append(run)
            return not run.num_refused and run.gap_ms <= gap_ms and run.ttft_ms <= ttft_ms

        with serving(model) as url:
            run_at(url, model, stream, LOWEST, 2.0, seed + 1)  # compiles what has not run yet
            sustained = highest_rate(meets, LOWEST, highest, PRECISION)
        print_runs(console, sorted(runs, key=lambda run: run.rate), "requests/s")
        console.print(f"\nsustained: {sustained:.1f} requests/s with a p99 gap of {gap_ms:.0f} ms at most\n")
        with serving(model, queue) as url:
            run_at(url, model, stream, LOWEST, 2.0, seed + 1)
            crowd = run_at(url, model, stream, 2 * max(sustained, LOWEST), 2 * seconds, seed)
            held = held_blocks(url)
        print_runs(console, [crowd], "twice that")
        waits = [outcome.retry_after for outcome in crowd.outcomes if outcome.status == FULL]
        console.print(
            f"\nRetry-After, median: {median(waits or [0.0]):.0f} s; blocks in use afterwards: {held:.0%}"
        )


@contextmanager
def serving(model: str, queue: int = 10_000) -> Iterator[str]:
    """The address of a server in a process of its own."""
    mine = [MINE] * (os.environ.get(OF_LEARNER) is not None)
    options = ["--model", model, "--port", "0", "--max-num-queued-reqs", str(queue), *mine]
    command = [sys.executable, "-m", "scripts.run.serve", *options]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = next(
            (word for line in process.stderr for word in line.split() if word.startswith("http://")), None
        )
        if url is None:
            raise ValueError("the server did not start: try `pdm run serve`")
        with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL):  # its log goes on
            yield url
            process.send_signal(signal.SIGTERM)
            process.wait(STARTUP_SECONDS)
    finally:
        process.kill()
        process.wait()


def run_at(url: str, model: str, stream: list[int], rate: float, seconds: float, seed: int) -> Run:
    """Send requests at a rate, and wait until the last of them has ended."""
    arrivals = list(poisson_arrivals(rate, seconds, seed))
    load = mixed_load(stream, len(arrivals), seed)
    outcomes = asyncio.run(send_all(url, model, load, arrivals))
    return Run(rate, outcomes)


async def send_all(url: str, model: str, load: Load, arrivals: list[float]) -> list[Outcome]:
    """Send each request at its moment."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        start = time.perf_counter()

        async def at(arrival: float, request: LoadRequest) -> Outcome:
            await asyncio.sleep(start + arrival - time.perf_counter())
            return await send(client, model, request)

        return await asyncio.gather(*map(at, arrivals, load))


async def send(client: httpx2.AsyncClient, model: str, request: LoadRequest) -> Outcome:
    """Send a request, and note when each token comes."""
    body = {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": request.num_output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    outcome, last, first = Outcome(), 0.0, time.perf_counter()
    async with client.stream("POST", "/v1/completions", content=json.dumps(body)) as response:
        outcome.status = response.status_code
        outcome.retry_after = float(response.headers.get("Retry-After", 0))
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.perf_counter()
            if last:
                outcome.gaps.append(now - last)
            else:
                outcome.ttft = now - first
            last = now
    return outcome


def held_blocks(url: str) -> float:
    """The share of blocks in use, by the server's own metrics."""
    text = httpx2.get(f"{url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc")]
    return float(lines[0].rpartition(" ")[2])


def print_runs(console: Console, runs: list[Run], heading: str) -> None:
    """A row for each rate."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in (heading, "sent", "answered", "refused", "p99 gap, ms", "median TTFT, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        counts = (len(run.outcomes), len(run.answered), run.num_refused)
        table.add_row(f"{run.rate:.1f}", *map(str, counts), f"{run.gap_ms:.1f}", f"{run.ttft_ms:.0f}")
    console.print(table)
