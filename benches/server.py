"""The server over HTTP: the rate it sustains, what HTTP costs, and what happens at twice that rate.

pdm run bench server --seconds 20 --hold 600
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.http_load import NEVER, Felt, HttpRequest, arriving, requests_of, send, write_trace
from benches.load import Load, mixed_load, token_stream
from benches.rounds import Repeats, Rounds, written
from benches.server_process import ServerProcess, serving
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.packages import OF_LEARNER
from tiny_llm import BlockManager, Engine, Qwen3Model, SamplingParams, SchedulerConfig, overlapped
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.server.capacity import highest_rate

OURS, MLX_LM = "scripts.run.serve", "mlx_lm.server"
BUDGET, PREFILL_ONLY, BATCH = 128, 512, 8  # of `pdm run serve`
SIDES: dict[str, tuple[str, ...]] = {
    "one budget": (),
    "whole prompts": ("--max-num-batched-tokens", "4096"),
    "no prefix caching": ("--no-enable-prefix-caching",),
    "drafts by lookup": ("--speculation", "lookup"),
}
SETTLED = 60.0  # seconds after which memory should not grow any more
BLOCK_SIZE = 16
FEWEST = 3  # requests of a run, on average
PRECISION = 0.05  # of the highest rate
SEED = 7

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Seconds = Annotated[float, typer.Option(min=1, help="Length of each run at a rate.")]
GapLimit = Annotated[float, typer.Option(min=1, help="Most milliseconds of the 99th percentile of gaps.")]
WaitLimit = Annotated[float, typer.Option(min=1, help="Most milliseconds to the first token, in the median.")]
Highest = Annotated[float, typer.Option(min=0.1, help="Highest rate to try, in requests per second.")]
Hold = Annotated[float, typer.Option(min=0, help="Seconds at twice the rate found; 0 for none.")]
Queue = Annotated[int, typer.Option(min=0, help="Room in the queue meanwhile.")]
NumRequests = Annotated[int, typer.Option(min=2, help="Requests at once, to compare with the engine alone.")]
Others = Annotated[bool, typer.Option("--mlx-lm", help="Send mlx-lm's server a tenth of the rate too.")]
Sides = Annotated[list[str] | None, typer.Option(help=f"Which servers, of {', '.join(SIDES)}.")]
Traces = Annotated[
    Path | None, typer.Option(help="Folder for traces: a file per run, a line of JSON per request.")
]


@dataclass(frozen=True)
class Limits:
    """What a rate must keep, in seconds."""

    gap_p99: float
    wait_p50: float

    def are_kept_by(self, felt: Felt) -> bool:
        """Whether both are, and every request was answered."""
        is_answered = felt.num_refused == felt.num_lost == 0
        return is_answered and felt.gap_p99 <= self.gap_p99 and felt.wait_p50 <= self.wait_p50


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    model: str
    tokenizer: Tokenizer
    stream: list[int]
    seconds: float
    limits: Limits
    traces: Path | None

    def serve(self, *options: str) -> AbstractContextManager[ServerProcess]:
        """A server of this course, with such options."""
        mine = ["--mine"] if os.environ.get(OF_LEARNER) else []
        return serving(OURS, self.model, [*options, *mine], "/ready")

    def at_rate(self, server: ServerProcess, name: str, rate: float, seconds: float) -> Felt:
        """Send a server requests at a rate, for so many seconds."""
        requests = arriving(self.tokenizer, self.stream, rate, seconds, seed=round(100 * rate))
        return self.send(server, f"{name} at {rate:.2f}", requests)

    def send(
        self, server: ServerProcess, name: str, requests: Sequence[HttpRequest], stream: bool = True
    ) -> Felt:
        """Send requests, keep what became of them, and return what users felt."""
        sent = send(server.url, server.model, requests, self.tokenizer.eos_token_ids, stream=stream)
        if self.traces is not None:
            write_trace(self.traces / f"{name.replace(' ', '-')}.jsonl", sent)
        return Felt.of(sent)


def main(
    model: Model = SHIPPED_MODEL,
    seconds: Seconds = 8.0,
    gap_limit: GapLimit = 20.0,
    wait_limit: WaitLimit = 250.0,
    highest: Highest = 200.0,
    hold: Hold = 16.0,
    queue: Queue = 16,
    num_requests: NumRequests = 64,
    mlx_lm: Others = False,
    side: Sides = None,
    traces: Traces = None,
    repeats: Repeats = None,
) -> Results:
    """Find the highest rate of requests that a server sustains, with its parts and without.

    Requests arrive at random, whether or not those before them have been answered. A rate is sustained if
    every request is answered, and both limits hold: on the 99th percentile of the gaps between tokens, and
    on the median time to the first token.

    Afterwards, requests come at twice that rate, to a server with little room in its queue.

    Example: pdm run bench server --seconds 20 --gap-limit 60 --hold 600
    """
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        loaded, tokenizer = load_by_name(model)
        stream = token_stream(model, tokenizer)
        checkpoint = str(resolve_checkpoint(model))
        limits = Limits(gap_limit / 1000, wait_limit / 1000)
        bench = Bench(checkpoint, tokenizer, stream, seconds, limits, traces)
        console, rounds = Console(highlight=False), Rounds(repeats)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        sides = [check_side(each) for each in side or SIDES]

        def print_overhead() -> None:
            console.print(overhead(bench, loaded, mixed_load(stream, num_requests, SEED), rounds))

        def print_rates() -> None:
            capacity: dict[str, Capacity] = {}
            rate = None
            for each in sides:
                capacity[each] = capacity_of(bench, each, highest, rate)
                rate = capacity[sides[0]].rate
            console.print(capacities(capacity))
            if mlx_lm:
                console.print(beside_mlx_lm(bench, capacity[sides[0]].rate / 10))
            if hold:
                console.print(held(bench, 2 * capacity[sides[0]].rate, hold, queue))

        written({"the cost of HTTP": print_overhead, "the highest rate": print_rates})
    return Results(rounds)


@dataclass(frozen=True)
class Capacity:
    """The highest rate that a server sustains; 0 if none was found. And what users felt at a rate."""

    sustained: float
    rate: float
    felt: Felt


def capacity_of(bench: Bench, side: str, highest: float, rate: float | None) -> Capacity:
    """Find what a server sustains, and let it serve at a rate; at the one it sustains if that is None."""
    runs: dict[float, Felt] = {}
    with bench.serve(*SIDES[side]) as server:
        bench.at_rate(server, f"{side}, warming up,", 2.0, 3.0)

        def felt_at(rate: float) -> Felt:
            if rate not in runs:
                runs[rate] = bench.at_rate(server, side, rate, bench.seconds)
            return runs[rate]

        lowest = min(highest, max(highest / 100, FEWEST / bench.seconds))
        sustained = highest_rate(
            lambda rate: bench.limits.are_kept_by(felt_at(rate)), lowest, highest, PRECISION
        )
        rate = rate or sustained or lowest
        return Capacity(sustained, rate, felt_at(rate))


def capacities(capacity: dict[str, Capacity]) -> Table:
    """A row for each server."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", "sustained", "at", "p99 gap", "first token", "answered", "lost"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for side, each in capacity.items():
        table.add_row(side, f"{each.sustained:.1f}/s", *felt_cells(each.rate, each.felt))
    return table


def check_side(side: str) -> str:
    """Return the name of a server; ValueError if there is none of this name."""
    if side not in SIDES:
        raise ValueError(f"there is no server {side!r}: choose from {', '.join(SIDES)}")
    return side


def felt_cells(rate: float, felt: Felt) -> list[str]:
    """What users felt at a rate."""
    waits = [f"{1000 * each:.1f} ms" for each in (felt.gap_p99, felt.wait_p50)]
    return [f"{rate:.1f}/s", *waits, str(felt.num_answered), str(felt.num_refused + felt.num_lost)]


def beside_mlx_lm(bench: Bench, rate: float) -> Table:
    """What users of both servers felt, with the same requests at the same times."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", "at", "p99 gap", "first token", "answered", "lost"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    servers = {
        "this course's": bench.serve(),
        "mlx-lm's": serving(MLX_LM, bench.model, [], "/health"),
    }
    for name, each in servers.items():
        with each as server:
            table.add_row(name, *felt_cells(rate, bench.at_rate(server, name, rate, bench.seconds)))
    return table


def overhead(bench: Bench, model: Qwen3Model, load: Load, rounds: Rounds) -> Table:
    """Tokens per second of a batch: the engine alone, and the same through HTTP, whole and streamed."""
    requests = requests_of(bench.tokenizer, load)
    prompts = [tuple(bench.tokenizer.encode(each.prompt)) for each in requests]
    lengths = [each.num_output_tokens for each in load]
    alone, whole, streamed = "engine alone", "HTTP, whole answers", "HTTP, streamed"
    with bench.serve("--no-enable-prefix-caching") as server:

        def run(side: str, _: int) -> float:
            if side == alone:
                return rate_alone(model, bench.tokenizer, prompts, lengths)
            felt = bench.send(server, side, requests, stream=side == streamed)
            if felt.num_answered < len(requests):
                raise ValueError(f"the server answered {felt.num_answered} of {len(requests)} requests")
            return felt.num_tokens / felt.seconds

        runs = rounds.in_turns((alone, whole, streamed), run, lambda rate: {"tokens per second": rate})
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", "tokens/s", "of the engine"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for side, rates in runs.items():
        table.add_row(side, f"{median(rates):.0f}", f"{median(rates) / median(runs[alone]):.2f}")
    return table


def rate_alone(
    model: Qwen3Model, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> float:
    """Tokens per second of the engine that the server runs, called directly."""
    config = SchedulerConfig(BUDGET, BATCH, max_num_prefill_only_tokens=PREFILL_ONLY)
    most = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
    blocks = BlockManager(BATCH * -(-most // BLOCK_SIZE), BLOCK_SIZE)
    biases = tuple((id, NEVER) for id in tokenizer.eos_token_ids)
    start = time.perf_counter()
    with Engine(model, tokenizer, config, most, blocks, execution=overlapped) as engine:
        for prompt, length in zip(prompts, lengths, strict=True):
            engine.add_request(prompt, SamplingParams(max_tokens=length, logit_bias=biases))
        while engine.has_unfinished_requests:
            engine.step()
    return sum(lengths) / (time.perf_counter() - start)


def held(bench: Bench, rate: float, seconds: float, queue: int) -> Table:
    """A long run at a rate that the server can't sustain: what became of requests, memory and blocks."""
    with bench.serve("--max-num-queued-reqs", str(queue)) as server, sampled(server) as memory:
        felt = bench.at_rate(server, "held", rate, seconds)
        held_blocks = server.gauge("vllm:kv_cache_usage_perc")
    settled = [bytes for at, bytes in memory if at > min(SETTLED, memory[-1][0] / 2)]
    table = Table(box=None, padding=(0, 1), show_header=False)
    for row in (
        (f"{seconds:.0f} seconds at", f"{rate:.1f} requests/s"),
        ("answered in full", str(felt.num_answered)),
        ("refused with 429", str(felt.num_refused)),
        ("Retry-After, median", f"{felt.retry_after:.0f} s"),
        ("neither", str(felt.num_lost)),
        ("first token, median", f"{1000 * felt.wait_p50:.0f} ms"),
        ("p99 gap", f"{1000 * felt.gap_p99:.1f} ms"),
        ("memory, least and most", f"{min(settled) / 2**20:.0f} to {max(settled) / 2**20:.0f} MiB"),
        ("share of the blocks held in the end", f"{held_blocks:.2f}"),
    ):
        table.add_row(*row)
    return table


@contextmanager
def sampled(server: ServerProcess) -> Iterator[list[tuple[float, int]]]:
    """The memory of a server, once per second and at the end: the seconds since the start, and bytes."""
    samples, done, start = [(0.0, server.memory)], Event(), time.monotonic()

    def sample() -> None:
        is_done = False
        while not is_done:
            is_done = done.wait(1.0)
            samples.append((time.monotonic() - start, server.memory))

    thread = Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
