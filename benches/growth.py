"""What one more token costs as the text grows, without a cache and with one.

pdm run bench growth --mine
"""

import importlib
import time
from itertools import pairwise
from types import ModuleType
from typing import Annotated

import typer

from benches.load import EndlessTokenizer
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.packages import learners_package

WAYS = {"without a cache": "simple_generate", "with a cache": "simple_generate_with_kv_cache"}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Lengths = Annotated[list[int], typer.Option("--length", min=1, help="Tokens before; may be repeated.")]
Tokens = Annotated[int, typer.Option(min=2, help="Tokens generated at each length, the first not counted.")]
Mine = Annotated[bool, typer.Option("--mine", help="Generate with tiny_llm, your own.")]


def main(
    model: Model = SHIPPED_MODEL,
    length: Lengths = [64, 128, 256, 512, 1024],  # noqa: B006 - typer copies it
    tokens: Tokens = 4,
    mine: Mine = False,
) -> None:
    """Generate a few tokens behind texts of several lengths and print the least milliseconds of one."""
    with usage_errors():
        package = learners_package() if mine else importlib.import_module("tiny_llm_ref")
        try:
            times = measure_all(package, model, length, tokens)
        except NotImplementedError as error:
            raise ValueError(f"your package cannot generate yet: {error}") from None
    from benches.speed import machine  # after the package, which puts a fast BLAS in place

    print(f"{model}; {', '.join(map(str, machine().values()))}")
    print(f"{'tokens so far':>13}  {'  '.join(f'{way:>15}' for way in times)}")
    for n in length:
        print(f"{n:13,}  {'  '.join(f'{of_way[n]:>15}' for of_way in times.values())}")


def measure_all(
    package: ModuleType, model: str, lengths: list[int], num_tokens: int
) -> dict[str, dict[int, str]]:
    """Least milliseconds a token by way and length; a dash for a way that is not written yet."""
    import mlx.core as mx

    loader = importlib.import_module(f"{package.__name__}.model.loader")
    loaded = loader.load_model(resolve_checkpoint(model), mx.float32)
    times: dict[str, dict[int, str]] = {way: {} for way in WAYS}
    for n in lengths:
        for way, function in WAYS.items():
            gaps: list[float] = []
            try:
                time_tokens(getattr(package, function), loaded, n, num_tokens, gaps)
            except NotImplementedError:
                if way == "without a cache":
                    raise
                times[way][n] = "-"
            else:
                times[way][n] = f"{1e3 * min(gaps):.1f} ms"
    return times


def time_tokens(generate: object, model: object, n: int, num_tokens: int, gaps: list[float]) -> None:
    """Add to `gaps` the seconds between tokens generated behind n others."""
    import mlx.core as mx

    last: list[float] = []

    def sampler(logprobs: mx.array) -> mx.array:
        token = mx.argmax(logprobs, axis=-1)
        mx.eval(token)
        last.append(time.perf_counter())
        return token

    prompt = [100 + 7 * i % 1000 for i in range(n)]
    assert callable(generate)
    generate(model, EndlessTokenizer(), prompt, sampler, num_tokens)
    gaps += [after - before for before, after in pairwise(last)]
