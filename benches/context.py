"""What one decode costs as the context grows, against the bytes of the cache that it reads.

pdm run bench context --model smollm2 --repeats 5
"""

import time
from statistics import median
from typing import Annotated

import mlx.core as mx
import numpy as np
import typer

from benches.bandwidth import measure_bandwidth
from benches.rounds import Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from tiny_llm import Qwen3Model, TinyKvFullCache, load
from tiny_llm.model.roofline import cache_bytes_per_token

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Steps = Annotated[int, typer.Option(min=1, help="Tokens decoded in each run.")]


def main(model: Model = SHIPPED_MODEL, steps: Steps = 8, repeats: Repeats = None) -> Results:
    """Decode one request behind contexts of 128 to 8,192 tokens and fit a line."""
    with usage_errors():
        loaded, _ = load(resolve_checkpoint(model), mx.float32)
    contexts = [n for n in CONTEXTS if n + steps < loaded.config.max_position_embeddings]
    rounds = Rounds(repeats)
    by_length = rounds.in_turns(
        map(str, contexts), lambda n, _: seconds_per_token(loaded, int(n), steps), itself, "tokens"
    )
    bandwidth = median(rounds.in_turns(["bandwidth"], lambda *_: measure_bandwidth(), itself)["bandwidth"])
    seconds = {int(n): runs for n, runs in by_length.items()}
    report(model, seconds, cache_bytes_per_token(loaded.config, mx.float32), bandwidth)
    return Results(rounds)


def seconds_per_token(model: Qwen3Model, context: int, steps: int) -> float:
    """One decode behind a cache of this length, whose content does not matter for the time."""
    cache = [filled_cache(model, context) for _ in model.layers]
    logits = model(mx.array([[1]]), context, cache, 1)
    mx.eval(logits)
    start = time.perf_counter()
    for step in range(steps):
        token = mx.argmax(logits[:, -1], axis=-1)[:, None]
        logits = model(token, context + 1 + step, cache, 1)
        mx.eval(logits)
    return (time.perf_counter() - start) / steps


def filled_cache(model: Qwen3Model, context: int) -> TinyKvFullCache:
    """A layer's cache of random keys and values."""
    config = model.config
    cache = TinyKvFullCache()
    keys, values = mx.random.normal((2, 1, config.num_key_value_heads, context, config.head_dim))
    cache.update_and_fetch(keys, values)
    mx.eval(cache.state)
    return cache


def report(model: str, seconds: dict[int, list[float]], bytes_per_token: int, bandwidth: float) -> None:
    """A line a length, then the slope and what it means in bytes."""
    print(f"{model}; {', '.join(map(str, machine().values()))}")
    for n, runs in seconds.items():
        megabytes = n * bytes_per_token / 1e6
        times = f"{median(runs) * 1e3:.3g} ms ({min(runs) * 1e3:.3g} to {max(runs) * 1e3:.3g})"
        print(f"{n:5} tokens, {megabytes:6.1f} MB of cache: {times}")
    medians = [median(runs) for runs in seconds.values()]
    slope, intercept = np.polyfit([n * bytes_per_token for n in seconds], medians, 1)
    print(
        f"fit: {intercept * 1e3:.3g} ms and {slope * 1e12:.3g} ms for each GB of cache, "
        f"{1 / slope / 1e9:.3g} GB/s; memory is read at {bandwidth / 1e9:.3g} GB/s"
    )
