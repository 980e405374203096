"""Records what the book's figures show of a model and of a machine: log-probabilities, bandwidth and peak."""

import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
import typer

from benches.bandwidth import measure_bandwidth
from scripts.author.record_engine_thread import record_engine_thread
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.checkpoints.models import load_by_name
from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm.generation.generate import encode_prompt, to_logprobs

COMMAND = "pdm run author record-figures"
DATA = ROOT / "book" / "viz" / "data"
PROMPTS = ("And Jesus answered and said unto", "And the LORD spake", "In the beginning God created the")
DECIMALS = 4
MATRIX_SIZE = 2048
REPEATS = 10
SHAPES = {  # what config.json calls them, and the figures
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kvHeads",
    "head_dim": "headDim",
    "intermediate_size": "intermediate",
    "vocab_size": "vocab",
}
OTHER_SHAPES = {  # from the config.json of these checkpoints on the hub; all are tied
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, False),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936, True),
}

Out = Annotated[Path, typer.Option(help="The folder that the data are written to.")]
Only = Annotated[str | None, typer.Option(help="The only figure whose data are recorded.")]


def main(out: Out = DATA, only: Only = None) -> None:
    """Record the data of the book's figures: logits of the shipped checkpoint, this machine's limits, runs.

    Example: pdm run author record-figures --only sampler
    """
    use_full_float32()
    recorders: dict[str, Callable[[], dict[str, Any]]] = {
        "sampler": record_sampler,
        "roofline": record_roofline,
        "engine-thread": partial(record_engine_thread, COMMAND, machine()),
    }
    with usage_errors():
        if only is not None and only not in recorders:
            raise ValueError(f"no figure {only!r} has data: choose one of {', '.join(recorders)}")
        out.mkdir(parents=True, exist_ok=True)
        for name, record in recorders.items():
            if only in (None, name):
                write(out / f"{name}.js", name, record())


def write(file: Path, name: str, data: dict[str, Any]) -> None:
    """A classic script that sets one entry of TinyData, headed by where it comes from."""
    lines = [
        f"// Made by `{COMMAND}` on {data['machine']}.",
        "var TinyData = TinyData || {};",
        f"TinyData[{json.dumps(name)}] = {json.dumps(data, ensure_ascii=True, separators=(',', ':'))};",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {file.name}")


def machine() -> str:
    """Processor, cores, system and the version of MLX."""
    device = mx.device_info().get("device_name", platform.machine())
    return f"{device}, {os.cpu_count()} cores, {platform.system()}, mlx {version('mlx')}"


def record_sampler() -> dict[str, Any]:
    """The log-probabilities of every token after each prompt, and the tokens' texts."""
    model, tokenizer = load_by_name(SHIPPED_MODEL)
    prompts = []
    for prompt in PROMPTS:
        logits = model(mx.array([encode_prompt(tokenizer, prompt)]), logits_to_keep=1)
        logprobs = np.array(to_logprobs(logits)[0], dtype=np.float64).round(DECIMALS)
        prompts.append({"text": prompt, "logprobs": logprobs.tolist()})
    tokens = [tokenizer.decode([token]) for token in range(model.config.vocab_size)]
    return {
        "command": COMMAND,
        "machine": machine(),
        "model": SHIPPED_MODEL,
        "tokens": tokens,
        "prompts": prompts,
    }


def record_roofline() -> dict[str, Any]:
    """Bytes and operations a second of this machine, and the shapes of the models that the figure offers."""
    config = json.loads((resolve_checkpoint(SHIPPED_MODEL) / "config.json").read_text(encoding="utf-8"))
    shapes = {SHIPPED_MODEL: {ours: config[theirs] for theirs, ours in SHAPES.items()} | {"qkNorm": True}}
    names = [*SHAPES.values(), "qkNorm"]
    shapes |= {name: dict(zip(names, shape, strict=True)) for name, shape in OTHER_SHAPES.items()}
    return {
        "command": COMMAND,
        "machine": machine(),
        "bandwidth": round(max(measure_bandwidth() for _ in range(REPEATS)) / 1e9, 1),
        "peak": round(measure_peak() / 1e9, 1),
        "models": shapes,
    }


def measure_peak() -> float:
    """Operations a second of a large product of matrices in float32, at best."""
    a, b = (mx.random.normal((MATRIX_SIZE, MATRIX_SIZE), key=mx.random.key(seed)) for seed in (0, 1))
    mx.eval(a, b)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        mx.eval(a @ b)
        seconds.append(time.perf_counter() - start)
    return 2 * MATRIX_SIZE**3 / min(seconds)


if __name__ == "__main__":
    typer.run(main)
