"""Memory bandwidth of this machine, the limit it sets to decoding, and how near decoding comes to it.

pdm run bench bandwidth --model smollm2 --repeats 5
"""

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated

import mlx.core as mx
import numpy as np
import typer

from benches.rounds import Repeats, Rounds, itself, written
from benches.watched import Results
from kernel_runtime.checkpoint import read_json, read_tensors
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from tiny_llm.model.config import ModelConfig
from tiny_llm.model.loader import Quantization, load_model
from tiny_llm.model.operations import PLAIN_OPERATIONS, Operations
from tiny_llm.model.qwen3 import Qwen3Model
from tiny_llm.model.roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token
from tiny_llm.ops.quantize import QuantizedMatmul, QuantizedWeights, quantized_matmul_simple

MEGABYTES_READ = 512  # many times a processor's caches
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
ContextLength = Annotated[int, typer.Option(min=1, help="Tokens in the cache before the measured ones.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens decoded in each repeat.")]


def main(
    model: Model = SHIPPED_MODEL,
    context_length: ContextLength = 128,
    max_tokens: MaxTokens = 32,
    repeats: Repeats = None,
) -> Results:
    """Measure how fast memory is read, work out tokens per second from it, and decode to compare."""
    with usage_errors():
        path = resolve_checkpoint(model)
        sides = load_sides(path)
    rounds = Rounds(repeats)
    bandwidths = rounds.in_turns(["bandwidth"], lambda *_: measure_bandwidth(), itself)["bandwidth"]
    rates = rounds.in_turns(
        sides, lambda name, _: measure_decode(sides[name].model, context_length, max_tokens), itself
    )
    report_machine(model, context_length)
    print(f"memory bandwidth {spread([each / 1e9 for each in bandwidths])} GB/s")
    for name in rates:
        side = sides[name]
        cache_bytes = context_length * side.cache_bytes_per_token
        limit = bandwidth_limit(median(bandwidths), side.weight_bytes, cache_bytes=cache_bytes)
        rate = median(rates[name])
        print(f"{name}: {side.weight_bytes / 1e6:.4g} MB and {cache_bytes / 1e6:.4g} MB of cache per token")
        print(f"  at most {limit:.4g} tokens/s, measured {spread(rates[name])}, {rate / limit:.1%}")
    return Results(rounds)


@dataclass(frozen=True)
class Side:
    """A model loaded in one way, and what decoding with it has to read."""

    model: Qwen3Model
    weight_bytes: int
    cache_bytes_per_token: int


def load_sides(path: Path) -> dict[str, Side]:
    """The checkpoint with its packed weights expanded, then packed with one product after the other."""
    config_dict = read_json(path / "config.json")
    config, quantization = ModelConfig.from_dict(config_dict), Quantization.from_config(config_dict)
    packed = read_tensors(path)
    is_cpu = mx.default_device() == mx.Device(mx.cpu)
    dtype = mx.float32 if is_cpu else packed["model.norm.weight"].dtype
    cache_bytes = cache_bytes_per_token(config, dtype)

    def side(operations: Operations, tensors: dict[str, mx.array]) -> Side:
        model = load_model(path, dtype, operations)
        return Side(model, decode_bytes_per_token(config, tensors, dtype), cache_bytes)

    expanded = expand(packed, quantization, config)
    sides = {"expanded at loading": partial(side, PLAIN_OPERATIONS, expanded)}
    if quantization is not None:
        for name, matmul in PRODUCTS.items():
            sides[name] = partial(side, Operations(matmul=matmul), packed)
    return written(sides)


def expand(
    tensors: dict[str, mx.array], quantization: Quantization | None, config: ModelConfig
) -> dict[str, mx.array]:
    """The plain tensors of a checkpoint, never evaluated: only their sizes matter."""
    inputs = {"o_proj": config.num_attention_heads * config.head_dim, "down_proj": config.intermediate_size}
    layers = [name.removesuffix(".scales") for name in tensors if name.endswith(".scales")]
    parts = {f"{layer}.{part}" for layer in layers for part in ("weight", "scales", "biases")}
    plain = {name: tensor for name, tensor in tensors.items() if name not in parts}
    for layer in layers:
        weight, scales, biases = (tensors[f"{layer}.{part}"] for part in ("weight", "scales", "biases"))
        assert quantization is not None  # or the model would not have loaded
        num_inputs = inputs.get(layer.split(".")[-1], config.hidden_size)
        bits, group_size = quantization.layout(layer, num_inputs, weight, scales, biases)
        plain[f"{layer}.weight"] = mx.dequantize(weight, scales, biases, group_size, bits)
    return plain


def matmul_of_mlx(x: mx.array, weights: QuantizedWeights) -> mx.array:
    """MLX's own product, for comparison."""
    return mx.quantized_matmul(
        x, weights.weight, weights.scales, weights.biases, True, weights.group_size, weights.bits
    )


PRODUCTS: dict[str, QuantizedMatmul] = {
    "packed, array operations": quantized_matmul_simple,
    "packed, MLX's product": matmul_of_mlx,
}


def report_machine(model: str, context_length: int) -> None:
    """Where and with what this was measured."""
    print(
        f"{platform.machine()}, {platform.system()}, {mx.default_device()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, mlx {version('mlx')}"
    )
    print(f"{model}, {context_length} tokens cached: median (least to most)")


def measure_bandwidth() -> float:
    """Bytes per second when every core, or the GPU, sums numbers that no cache holds."""
    if mx.default_device() == mx.Device(mx.gpu):
        numbers = mx.ones((MEGABYTES_READ << 20) // 4, mx.float32)
        mx.eval(numbers)
        seconds = least_seconds(lambda: mx.eval(mx.sum(numbers)))
        return numbers.nbytes / seconds
    parts = np.array_split(np.ones((MEGABYTES_READ << 20) // 4, np.float32), os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:  # NumPy sums without holding the interpreter's lock
        seconds = least_seconds(lambda: list(pool.map(np.sum, parts)))
    return sum(part.nbytes for part in parts) / seconds


def least_seconds(compute: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, the first left out."""
    compute()
    runs = []
    for _ in range(times):
        start = time.perf_counter()
        compute()
        runs.append(time.perf_counter() - start)
    return min(runs)


def measure_decode(model: Qwen3Model, context_length: int, num_tokens: int) -> float:
    """Tokens per second of one request, whatever its tokens say."""
    tokens = mx.random.randint(0, model.config.vocab_size, (1, context_length), key=mx.random.key(0))
    cache = model.create_kv_cache()
    token = mx.argmax(model(tokens, 0, cache, logits_to_keep=1)[:, -1], axis=-1)
    mx.eval(token, [layer.state for layer in cache])
    start = time.perf_counter()
    for i in range(num_tokens):
        token = mx.argmax(model(token[:, None], context_length + i, cache)[:, -1], axis=-1)
        mx.eval(token)
    return num_tokens / (time.perf_counter() - start)


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
