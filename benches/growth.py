"""What one more token costs as the text grows, without a cache and with one.

pdm run bench growth --mine
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Annotated

import mlx.core as mx
import typer

from benches.rounds import Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tiny_llm import simple_generate, simple_generate_with_kv_cache
from tiny_llm.model.registry import load_checkpoint
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

WAYS = {"without a cache": simple_generate, "with a cache": simple_generate_with_kv_cache}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Lengths = Annotated[list[int], typer.Option("--length", min=1, help="Tokens before; may be repeated.")]
Tokens = Annotated[int, typer.Option(min=2, help="Tokens generated at each length, the first not counted.")]


def main(
    model: Model = SHIPPED_MODEL,
    length: Lengths = [64, 128, 256, 512, 1024],  # noqa: B006 - typer copies it
    tokens: Tokens = 4,
    repeats: Repeats = None,
) -> Results:
    """Generate a few tokens behind texts of several lengths and print the milliseconds of one, medians."""
    rounds = Rounds(repeats)
    times = measure_all(model, length, tokens, rounds)
    print(f"{model}; {', '.join(map(str, machine().values()))}")
    print(f"{'tokens so far':>13}  {'  '.join(f'{way:>15}' for way in WAYS)}")
    for n, of_length in times.items():
        cells = (f"{1e3 * of_length[way]:.1f} ms" if way in of_length else "-" for way in WAYS)
        print(f"{n:13,}  {'  '.join(f'{cell:>15}' for cell in cells)}")
    return Results(rounds)


def measure_all(
    model: str, lengths: list[int], num_tokens: int, rounds: Rounds
) -> dict[int, dict[str, float]]:
    """Seconds a token, medians, by length and way; a cache that is not written yet is left out."""
    loaded = load_checkpoint(resolve_checkpoint(model), mx.float32)

    def run(n: int, way: str, turn: int) -> float:
        return seconds_per_token(WAYS[way], loaded, n, num_tokens)

    times = {}
    for n in lengths:
        runs = rounds.in_turns(WAYS, partial(run, n), itself, f"{n} tokens")
        times[n] = {way: median(seconds) for way, seconds in runs.items()}
    return times


def seconds_per_token(generate: Callable[..., object], model: object, n: int, num_tokens: int) -> float:
    """Of tokens generated behind n others, the first left out."""
    ends: list[float] = []

    def sampler(logprobs: mx.array) -> mx.array:
        token = mx.argmax(logprobs, axis=-1)
        mx.eval(token)
        ends.append(time.perf_counter())
        return token

    prompt = [100 + 7 * i % 1000 for i in range(n)]
    generate(model, EndlessTokenizer(), prompt, sampler, num_tokens)
    return (ends[-1] - ends[0]) / (len(ends) - 1)
