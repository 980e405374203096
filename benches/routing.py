"""Conversations behind each routing policy: what caches find, and how long users wait.

pdm run bench routing --shared          by the simulator
pdm run bench routing --measured        by vllm-router and real servers too
"""

from collections.abc import Callable, Sequence
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from benches.load import token_stream
from benches.routed import Talk, predicted, routed
from benches.routed import converse as converse_with
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.run.routers import require_router
from scripts.run.serve_options import RouterPolicy
from tiny_llm import (
    CacheAware,
    CostModel,
    Fleet,
    LeastLoaded,
    PrefixCachingBlockManager,
    RoundRobin,
    SchedulerConfig,
    ServingMetrics,
    Simulator,
    Slo,
    converse,
)
from tiny_llm.simulation.routing import Router

COST = CostModel(0.004, 0.0002, 1e-7)  # a machine that reads 5,000 tokens per second
PAUSE, EVERY = 0.2, 0.05  # seconds from an answer to the next question, and between newcomers
NO_TARGET = Slo(float("inf"), float("inf"))

Replicas = Annotated[int, typer.Option(min=1, help="Engines behind the router.")]
Users = Annotated[int, typer.Option(min=1, help="Conversations.")]
Turns = Annotated[int, typer.Option(min=1, help="Questions of each.")]
System = Annotated[int, typer.Option(min=0, help="Tokens of the introduction.")]
Question = Annotated[int, typer.Option(min=1, help="Tokens of a question.")]
Answer = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
Shared = Annotated[
    bool, typer.Option("--shared/--own", help="One introduction for all, or one for each user.")
]
Blocks = Annotated[int, typer.Option(min=1, help="Blocks of 16 tokens in each engine's pool.")]
Measured = Annotated[
    bool, typer.Option("--measured", help="Serve them by real servers behind vllm-router (Linux only).")
]
Model = Annotated[str, typer.Option(help="With --measured, which model is served.")]
Repeats = Annotated[int, typer.Option(min=1, help="With --measured, runs of each policy.")]
Policy = Annotated[RouterPolicy | None, typer.Option(help="With --measured, only this one.")]
Balance = Annotated[int, typer.Option(min=0, help="balance-abs-threshold of the last policy.")]


def main(
    replicas: Replicas = 2,
    users: Users = 24,
    turns: Turns = 6,
    system: System = 256,
    question: Question = 40,
    answer: Answer = 30,
    shared: Shared = False,
    blocks: Blocks = 500,
    balance: Balance = 4,
    measured: Measured = False,
    model: Model = SHIPPED_MODEL,
    repeats: Repeats = 1,
    policy: Policy = None,
) -> None:
    """Serve conversations on paper behind each policy, and print what they make of the same machines.

    Unless --measured, the engines are simulated, so the output is the same everywhere. With it, `pdm run
    serve` starts real ones behind vllm-router, for each of its policies anew. Their caches count what they
    find, and the simulator predicts that from the prompts and from when they came.

    Example: pdm run bench routing --shared --balance 2
    """
    if measured:
        talk = Talk(users, turns, system, question, answer, shared, PAUSE, EVERY)
        policies = get_args(RouterPolicy) if policy is None else (policy,)
        measure(talk, model, policies, replicas, blocks, repeats)
        return
    simulated: dict[str, Callable[[], Router]] = {
        "round robin": RoundRobin,
        "least loaded": LeastLoaded,
        "cache-aware": CacheAware,
        f"cache-aware, balance {balance}": lambda: CacheAware(balance_abs_threshold=balance),
    }
    conversations = converse(users, turns, system, question, answer, shared, PAUSE, EVERY)
    table = Table("policy", box=None, pad_edge=False)
    for title in ("requests", "found", "TTFT p50", "TTFT p99", "tokens/s"):
        table.add_column(title, justify="right")
    for name, make in simulated.items():
        fleet = Fleet(
            [
                Simulator(SchedulerConfig(512, 16), COST, PrefixCachingBlockManager(blocks, 16))
                for _ in range(replicas)
            ],
            make(),
        )
        fleet.run(conversations)
        metrics = ServingMetrics.of(fleet.times, NO_TARGET)
        table.add_row(
            name,
            " + ".join(str(fleet.choices.count(number)) for number in range(replicas)),
            f"{fleet.hit_rate:.0%}",
            *(f"{1e3 * (seconds or 0):.0f} ms" for seconds in (metrics.ttft_p50, metrics.ttft_p99)),
            f"{metrics.output_tokens_per_s or 0:,.0f}",
        )
    show(table, users, turns, system, shared, f"{replicas} simulated engines")


def measure(
    talk: Talk, model: str, policies: Sequence[RouterPolicy], replicas: int, blocks: int, repeats: int
) -> None:
    """Serve conversations by real engines behind each policy of vllm-router, and print what was measured."""
    from scripts.checkpoints.models import load_by_name

    require_router("vllm")
    _, tokenizer = load_by_name(model)
    stream = token_stream(model, tokenizer)
    table = Table("policy", box=None, pad_edge=False)
    for name in ("requests", "found", "predicted", "TTFT p50", "answers/s"):
        table.add_column(name, justify="right")
    for policy in policies:
        with routed(model, policy, replicas, blocks) as servers:
            for number in range(repeats):
                served = converse_with(servers, talk, tokenizer, stream, number)
                table.add_row(
                    policy,
                    " + ".join(map(str, served.counts)),
                    f"{served.found:.1%}",
                    f"{predicted(served, tokenizer, policy, replicas, blocks):.1%}",
                    f"{1e3 * served.ttft:.0f} ms",
                    f"{served.rate:.2f}",
                )
    engines = f"{replicas} servers of {model} behind vllm-router"
    show(table, talk.num_users, talk.num_turns, talk.system, talk.shared, engines)


def show(table: Table, users: int, turns: int, system: int, shared: bool, engines: str) -> None:
    """Print what was served by which engines, and a table."""
    kind = "one introduction for all" if shared else "an introduction of their own each"
    console = Console(width=100)
    console.print(
        f"{users} users, {turns} turns each, {system} tokens as {kind}; {engines}",
        highlight=False,
    )
    console.print(table)
