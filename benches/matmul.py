"""The product with packed weights by each means there is: milliseconds and GFLOP/s, by number of rows.

pdm run bench matmul --mine
"""

import importlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any

import typer

from scripts.errors import usage_errors
from scripts.packages import learners_package

Rows = Annotated[list[int], typer.Option("--rows", min=1, help="Rows of x; may be repeated.")]
Inputs = Annotated[int, typer.Option(min=128, help="Inputs K, a multiple of 64.")]
Outputs = Annotated[int, typer.Option(min=1, help="Outputs N.")]
Bits = Annotated[int, typer.Option(help="2, 3, 4, 5, 6 or 8.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each, after one that is not counted.")]
Mine = Annotated[bool, typer.Option("--mine", help="Multiply with tiny_llm, your own.")]
Multiply = Callable[[Any, Any], Any]


def main(
    rows: Rows = [1, 8, 64, 256],  # noqa: B006 - typer copies it
    inputs: Inputs = 1024,
    outputs: Outputs = 4096,
    bits: Bits = 4,
    repeats: Repeats = 5,
    mine: Mine = False,
) -> None:
    """Multiply x of some rows with packed weights in groups of 64, in turns, and print the least of each."""
    with usage_errors():
        package = learners_package() if mine else importlib.import_module("tiny_llm_ref")
        try:
            times = measure_all(package, rows, (outputs, inputs), bits, repeats)
        except NotImplementedError as error:
            raise ValueError(f"your package cannot multiply yet: {error}") from None
    from benches.speed import machine  # after the package, which puts a fast BLAS in place

    print(", ".join(map(str, machine().values())))
    print(
        f"[M, {inputs}] times [{outputs}, {inputs}] of {bits} bits, least of {repeats} runs: ms and GFLOP/s"
    )
    print(f"{'M':>26}{''.join(f'{count:>17}' for count in rows)}")
    for way, by_rows in times.items():
        print(f"{way:26}{''.join(cell(by_rows[count], count * inputs * outputs) for count in rows)}")


def measure_all(
    package: ModuleType, rows: list[int], shape: tuple[int, int], bits: int, repeats: int
) -> dict[str, dict[int, list[float]]]:
    """Seconds by means and rows; none where a kernel is not written yet."""
    import mlx.core as mx

    weights = package.quantize_weights(mx.random.normal(shape, key=mx.random.key(0)), 64, bits)
    means = ways_to_multiply(package, bits)
    times: dict[str, dict[int, list[float]]] = {way: {count: [] for count in rows} for way in means}
    for count in rows:
        x = mx.random.normal((count, shape[1]), key=mx.random.key(count))
        mx.eval(x, weights.weight, weights.scales, weights.biases)
        for repeat in range(repeats + 1):
            for way, multiply in list(means.items()):
                try:
                    start = time.perf_counter()
                    mx.eval(multiply(x, weights))
                except NotImplementedError:
                    del means[way]
                    continue
                if repeat:
                    times[way][count].append(time.perf_counter() - start)
    return times


def ways_to_multiply(package: ModuleType, bits: int) -> dict[str, Multiply]:
    """What multiplies, by name; the C++ kernels only where they are the ones to choose from."""
    import mlx.core as mx

    kernels = importlib.import_module(f"{package.__name__}.kernels.quantized_matmul")

    def of_mlx(x: Any, weights: Any) -> Any:
        return mx.quantized_matmul(
            x, weights.weight, weights.scales, weights.biases, True, weights.group_size, weights.bits
        )

    means: dict[str, Multiply] = {"array operations": package.quantized_matmul_simple, "MLX's own": of_mlx}
    if bits in (4, 8) and mx.default_device() == mx.Device(mx.cpu):
        means |= {"plain loops": kernels.multiply_simple, "vectors": kernels.multiply_simd}
    integers = importlib.import_module(f"{package.__name__}.kernels.given.integer_matmul")
    return {**means, "dispatch": kernels.quantized_matmul, "in whole numbers": integers.integer_matmul}


def cell(seconds: list[float], num_products: int) -> str:
    """Least milliseconds, and how many thousand million operations a second that is."""
    if not seconds:
        return f"{'not written yet':>17}"
    least = min(seconds)
    return f"{1e3 * least:>9.2f} {2e-9 * num_products / least:>7.1f}"
