"""Where the time of a decode and of a prefill goes: each part of the model evaluated and timed on its own.

pdm run bench parts --context 1024
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from accelerated.accelerate import best_operations
from benches.rounds import Repeats, Rounds
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from tiny_llm.kernels.quantized_matmul import quantized_matmul
from tiny_llm.model.operations import Operations
from tiny_llm.model.qwen3 import Qwen3Model
from tiny_llm.model.registry import load_checkpoint
from tiny_llm.ops.flash_attention import flash_attention

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded

from benches.speed import machine

PARTS = ("products", "attention", "rotation", "norms", "gate of the MLP", "the rest")
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens in the cache before a decode, and of a prefill.")]


@dataclass
class Clock:
    """Seconds by part, without those of the parts inside it."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    inside: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def running(self, part: str) -> Iterator[None]:
        """Time what happens inside for a part."""
        self.inside.append(0.0)
        start = time.perf_counter()
        yield
        taken = time.perf_counter() - start
        self.seconds[part] += taken - self.inside.pop()
        self.inside[-1] += taken

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its inputs evaluated before and its result after."""

        def call(*arguments: Any, **named: Any) -> Any:
            mx.eval([x for x in arguments if isinstance(x, mx.array)])
            with self.running(part):
                result = function(*arguments, **named)
                mx.eval(result)
            return result

        return call

    def timed_once_made(self, part: str, make: Callable[..., Any]) -> Callable[..., Any]:
        """What makes a part of a model, the calls of the part timed."""
        return lambda *arguments: self.timed(part, make(*arguments))


@dataclass(frozen=True)
class Side:
    """A model whose parts are timed."""

    model: Qwen3Model
    clock: Clock


def main(model: Model = SHIPPED_MODEL, context: Context = 512, repeats: Repeats = None) -> Results:
    """Time the parts of a model with the attention of day 2.4, and of one with all kernels, in turns."""
    with usage_errors():
        path = resolve_checkpoint(model)
    sides = {
        "2.4": load_side(path, Operations(attention=flash_attention)),
        "all kernels": load_side(path, best_operations(mx.float32)),
    }
    rounds = Rounds(repeats)
    times = measure(sides, context, rounds)
    print(f"{model}; {', '.join(map(str, machine().values()))}")
    print(f"{context} tokens; ms, each part evaluated on its own; medians")
    print(f"{'':16}{''.join(f'{work:>13}' for work, _ in times)}")
    print(f"{'':16}{''.join(f'{side:>13}' for _, side in times)}")
    for part in (*PARTS, "together"):
        print(f"{part:16}{''.join(f'{1e3 * of_part[part]:13.2f}' for of_part in times.values())}")
    return Results(rounds)


def load_side(path: Path, operations: Operations) -> Side:
    """The model of a checkpoint, its parts timed."""
    clock = Clock()
    timed = Operations(
        norm=clock.timed_once_made("norms", operations.norm),
        rope=clock.timed_once_made("rotation", operations.rope),
        mlp=clock.timed_once_made("gate of the MLP", operations.mlp),
        attention=clock.timed("attention", operations.attention),
        matmul=clock.timed("products", operations.matmul or quantized_matmul),
    )
    return Side(load_checkpoint(path, mx.float32, timed), clock)


def measure(sides: dict[str, Side], context: int, rounds: Rounds) -> dict[tuple[str, str], dict[str, float]]:
    """Median seconds of each part, by work and side."""
    tokens = mx.array([[100 + 7 * i % 1000 for i in range(context)]])
    works = {"decode": (tokens[:, :1], context), "prefill": (tokens, 0)}

    def run(name: str, turn: int) -> dict[str, dict[str, float]]:
        side, seconds = sides[name], {}
        cache = side.model.create_kv_cache()
        for work, (ids, offset) in reversed(works.items()):  # the prefill fills the decode's cache
            side.clock.seconds.clear()
            with side.clock.running("the rest"):
                mx.eval(side.model(ids, offset, cache, 1), [layer.state for layer in cache])
            parts = {part: side.clock.seconds[part] for part in PARTS}
            seconds[work] = {**parts, "together": sum(parts.values())}
        return seconds

    runs = rounds.in_turns(sides, run, lambda works: {work: each["together"] for work, each in works.items()})
    return {
        (work, side): {part: median(each[work][part] for each in of_side) for part in (*PARTS, "together")}
        for work in works
        for side, of_side in runs.items()
    }
