"""The product with packed weights by each means there is: milliseconds and GFLOP/s, by number of rows.

pdm run bench matmul --mine
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import mlx.core as mx
import typer

from accelerated.integer_matmul import integer_matmul
from benches.rounds import Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from tiny_llm import quantize_weights, quantized_matmul_simple
from tiny_llm.kernels.quantized_matmul import multiply_simd, multiply_simple, quantized_matmul

Rows = Annotated[list[int], typer.Option("--rows", min=1, help="Rows of x; may be repeated.")]
Inputs = Annotated[int, typer.Option(min=128, help="Inputs K, a multiple of 64.")]
Outputs = Annotated[int, typer.Option(min=1, help="Outputs N.")]
Bits = Annotated[int, typer.Option(help="2, 3, 4, 5, 6 or 8.")]
Multiply = Callable[[Any, Any], Any]


def main(
    rows: Rows = [1, 8, 64, 256],  # noqa: B006 - typer copies it
    inputs: Inputs = 1024,
    outputs: Outputs = 4096,
    bits: Bits = 4,
    repeats: Repeats = None,
) -> Results:
    """Multiply x of some rows with packed weights in groups of 64, in turns, and print the medians."""
    rounds = Rounds(repeats)
    times = measure_all(rows, (outputs, inputs), bits, rounds)
    print(", ".join(map(str, machine().values())))
    print(f"[M, {inputs}] times [{outputs}, {inputs}] of {bits} bits, medians: ms and GFLOP/s")
    print(f"{'M':>26}{''.join(f'{count:>17}' for count in rows)}")
    for way, by_rows in times.items():
        print(f"{way:26}{''.join(cell(by_rows[count], count * inputs * outputs) for count in rows)}")
    return Results(rounds)


def measure_all(
    rows: list[int], shape: tuple[int, int], bits: int, rounds: Rounds
) -> dict[str, dict[int, list[float]]]:
    """Seconds by means and rows; none where a kernel is not written yet."""
    weights = quantize_weights(mx.random.normal(shape, key=mx.random.key(0)), 64, bits)
    means = ways_to_multiply(bits)
    times: dict[str, dict[int, list[float]]] = {way: {count: [] for count in rows} for way in means}
    for count in rows:
        x = mx.random.normal((count, shape[1]), key=mx.random.key(count))
        mx.eval(x, weights.weight, weights.scales, weights.biases)

        def seconds_of(way: str, turn: int, x: Any = x) -> float:
            start = time.perf_counter()
            mx.eval(means[way](x, weights))
            return time.perf_counter() - start

        for way, seconds in rounds.in_turns(means, seconds_of, itself, f"M {count}").items():
            times[way][count] = seconds
    return times


def ways_to_multiply(bits: int) -> dict[str, Multiply]:
    """What multiplies, by name; the C++ kernels only where they are the ones to choose from."""

    def of_mlx(x: Any, weights: Any) -> Any:
        return mx.quantized_matmul(
            x, weights.weight, weights.scales, weights.biases, True, weights.group_size, weights.bits
        )

    means: dict[str, Multiply] = {"array operations": quantized_matmul_simple, "MLX's own": of_mlx}
    if bits in (4, 8) and mx.default_device() == mx.Device(mx.cpu):
        means |= {"plain loops": multiply_simple, "vectors": multiply_simd}
    return {**means, "dispatch": quantized_matmul, "in whole numbers": integer_matmul}


def cell(seconds: list[float], num_products: int) -> str:
    """Median milliseconds, and how many billion operations per second that is."""
    if not seconds:
        return f"{'not written yet':>17}"
    middle = median(seconds)
    return f"{1e3 * middle:>9.2f} {2e-9 * num_products / middle:>7.1f}"
