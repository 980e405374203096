"""Conversations behind each routing policy, by the simulator: what caches find, and how long users wait.

pdm run bench routing --shared
"""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

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
) -> None:
    """Serve conversations on paper behind each policy, and print what they make of the same machines.

    Nothing is measured: the engines are simulated, so the output is the same everywhere.

    Example: pdm run bench routing --shared --balance 2
    """
    policies: dict[str, Callable[[], Router]] = {
        "round robin": RoundRobin,
        "least loaded": LeastLoaded,
        "cache-aware": CacheAware,
        f"cache-aware, balance {balance}": lambda: CacheAware(balance_abs_threshold=balance),
    }
    conversations = converse(users, turns, system, question, answer, shared, PAUSE, EVERY)
    table = Table("policy", box=None, pad_edge=False)
    for title in ("requests", "found", "TTFT p50", "TTFT p99", "tokens/s"):
        table.add_column(title, justify="right")
    for name, make in policies.items():
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
    kind = "one introduction for all" if shared else "an introduction of their own each"
    console = Console(width=100)
    console.print(
        f"{users} users, {turns} turns each, {system} tokens as {kind}; {replicas} simulated engines",
        highlight=False,
    )
    console.print(table)
