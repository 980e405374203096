"""FlashAttention in blocks against the plain attention: time and peak memory as the prompt grows.

pdm run bench flash --heads 9 --kv-heads 3
"""

import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Annotated

import typer

from benches.rounds import Repeats, Rounds
from benches.watched import Results
from scripts.hardware.memory import finish_work, memory_use
from tiny_llm.ops.attention import Attention, scaled_dot_product_attention_grouped
from tiny_llm.ops.flash_attention import KEY_BLOCK, QUERY_BLOCK, flash_attention

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded

Lengths = Annotated[list[int], typer.Option("--length", min=1, help="Queries and keys; may be repeated.")]
Heads = Annotated[int, typer.Option(min=1, help="Query heads, H_q.")]
KvHeads = Annotated[int, typer.Option(min=1, help="Key and value heads, H.")]
HeadDim = Annotated[int, typer.Option(min=1, help="Dimensions of a head, D.")]
QueryBlock = Annotated[int, typer.Option(min=1, help="Queries of a block.")]
KeyBlock = Annotated[int, typer.Option(min=1, help="Keys of a block.")]
Dtype = Annotated[str, typer.Option(help="float32, float16 or bfloat16.")]


@dataclass(frozen=True)
class Cost:
    """What one call took: seconds, and bytes held beyond the inputs."""

    seconds: float
    peak_bytes: int


def main(
    length: Lengths = [256, 512, 1024, 2048],  # noqa: B006 - typer copies it
    heads: Heads = 9,
    kv_heads: KvHeads = 3,
    head_dim: HeadDim = 64,
    query_block: QueryBlock = QUERY_BLOCK,
    key_block: KeyBlock = KEY_BLOCK,
    dtype: Dtype = "float32",
    repeats: Repeats = None,
) -> Results:
    """Run both on causal prompts, in turns, and print medians with their spread."""

    def flash(
        query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: object = "causal"
    ) -> mx.array:
        return flash_attention(query, key, value, scale, "causal", query_block, key_block)

    print(
        f"{platform.machine()}, {platform.system()}, {mx.default_device()}, "
        f"Python {platform.python_version()}, mlx {version('mlx')}"
    )
    print(
        f"causal, {heads} query heads over {kv_heads}, D {head_dim}, {dtype}, "
        f"blocks of {query_block} x {key_block}: median (least to most)"
    )
    rounds = Rounds(repeats)
    for L in length:
        sizes = ((heads, L), (kv_heads, L), (kv_heads, L))
        inputs = [mx.random.normal((1, H, n, head_dim)).astype(getattr(mx, dtype)) for H, n in sizes]
        mx.eval(inputs)
        sides: dict[str, Attention] = {"plain": scaled_dot_product_attention_grouped, "flash": flash}
        costs = rounds.in_turns(
            sides,
            lambda side, _, sides=sides, inputs=inputs: cost_of(sides[side], inputs),  # type: ignore[misc]
            lambda cost: {"": cost.seconds},
            f"L {L}",
        )
        print(f"L {L:5}  {'  '.join(f'{side} {describe(runs)}' for side, runs in costs.items())}")
    return Results(rounds)


def cost_of(attention: Attention, inputs: list[mx.array]) -> Cost:
    """One call, evaluated."""
    query, key, value = inputs
    with memory_use() as memory:
        start = time.perf_counter()
        mx.eval(attention(query, key, value, mask="causal"))
        finish_work()
        seconds = time.perf_counter() - start
    return Cost(seconds, memory.peak)


def describe(costs: list[Cost]) -> str:
    """Medians, with the spread of the times."""
    times = [1000 * cost.seconds for cost in costs]
    peak = median(cost.peak_bytes for cost in costs) / 2**20
    return f"{median(times):7.1f} ms ({min(times):.1f} to {max(times):.1f}) {peak:7.1f} MiB"
