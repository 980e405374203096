"""How many experts a step of a mixture reads as more requests decode, predicted and measured.

pdm run bench experts --model qwen3-kjv-moe
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import mlx.core as mx
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benches.load import take, token_stream
from benches.rounds import Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from kernel_runtime.checkpoint import read_json, read_tensors
from scripts.checkpoints.files import resolve_checkpoint
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm import BlockManager, Engine, Qwen3Model, SamplingParams, SchedulerConfig
from tiny_llm.model.moe import SparseMoe
from tiny_llm.model.moe_loader import MoeConfig
from tiny_llm.model.registry import find_model_type
from tiny_llm.ops.experts import expected_num_experts, route
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

MOE_MODEL = "qwen3-kjv-moe"
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT = 24  # tokens of each prompt
BLOCK_SIZE = 16
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens of an answer.")]


def main(model: Model = MOE_MODEL, max_tokens: MaxTokens = 32, repeats: Repeats = None) -> Results:
    """Let requests decode, and count the experts that each layer reads per step.

    Example: pdm run bench experts --max-tokens 64
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        path = resolve_checkpoint(model)
        config = read_json(path / "config.json")
        read_experts = find_model_type(config).read_experts
        if read_experts is None:
            raise ValueError(f"{model} has no experts: choose a model that does, such as {MOE_MODEL}")
        moe = read_experts(config)
        rounds = Rounds(repeats)
        loaded, tokenizer = load_by_name(model)
        stream = token_stream(model, tokenizer)
        prompts = [take(stream, 53 * number, PROMPT) for number in range(max(BATCHES))]
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        seconds = rounds.in_turns(
            map(str, BATCHES),
            lambda batch, _: step_seconds(loaded, prompts[: int(batch)], max_tokens),
            itself,
            "batch of",
        )
        megabytes = bytes_per_expert(path, moe) / 1e6
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for heading in ("batch", "experts read", "predicted", "MB per token", "ms per step", "tokens/s"):
            table.add_column(heading, justify="right")
        for batch in BATCHES:
            num_read = mean(num_experts_read(loaded, prompts[:batch], max_tokens))
            predicted = expected_num_experts(moe.num_experts, moe.num_chosen, batch)
            num_layers = len(mixtures(loaded))
            ms = 1e3 * median(seconds[str(batch)])
            table.add_row(
                str(batch),
                f"{num_read:.2f}",
                f"{predicted:.2f}",
                f"{num_layers * num_read * megabytes / batch:.3f}",
                f"{ms:.2f}",
                f"{1e3 * batch / ms:,.0f}",
            )
        console.print(
            f"\n{moe.num_experts} experts per layer, {moe.num_chosen} per token; per layer and step:"
        )
        console.print(table)
    return Results(rounds)


def mixtures(model: Qwen3Model) -> list[SparseMoe]:
    """The mixtures of a model, by layer."""
    return [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMoe)]


def bytes_per_expert(path: Path, moe: MoeConfig) -> float:
    """Bytes of one expert's weights in one layer."""
    num_layers = read_json(path / "config.json")["num_hidden_layers"]
    sizes = [tensor.nbytes for name, tensor in read_tensors(path).items() if ".mlp.switch_mlp." in name]
    num_sparse = sum(moe.is_sparse(layer) for layer in range(num_layers))
    return sum(sizes) / moe.num_experts / num_sparse


def decode(
    model: Qwen3Model,
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    step: Callable[[Engine], object],
) -> None:
    """Compute all prompts in one step, then call `step` for each step in which all requests decode."""
    num_tokens = PROMPT + max_tokens
    blocks = BlockManager(len(prompts) * -(-num_tokens // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(max(512, PROMPT * len(prompts)), len(prompts))
    with Engine(model, EndlessTokenizer(), config, num_tokens, blocks) as engine:
        for prompt in prompts:
            engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        engine.step()
        for _ in range(max_tokens - 1):
            step(engine)


def step_seconds(model: Qwen3Model, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> float:
    """Median seconds of a step."""
    seconds = []

    def timed(engine: Engine) -> None:
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)

    decode(model, prompts, max_tokens, timed)
    return median(seconds)


class Counting:
    """A mixture that also notes how many experts its tokens choose."""

    def __init__(self, mixture: SparseMoe) -> None:
        self.mixture = mixture
        self.nums: list[int] = []

    def __call__(self, x: mx.array) -> mx.array:
        """[B, L, E] -> [B, L, E]"""
        moe = self.mixture
        experts, _ = route(moe.router(x.reshape(-1, x.shape[-1])), moe.num_chosen, moe.is_normalized)
        self.nums.append(len(np.unique(np.array(experts))))
        return moe(x)


def num_experts_read(model: Qwen3Model, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> list[int]:
    """Experts that a layer reads in a step, for all layers and steps in which all requests decode."""
    counting = {layer: Counting(layer.mlp) for layer in model.layers if isinstance(layer.mlp, SparseMoe)}
    try:
        for layer, counter in counting.items():
            layer.mlp = counter
        decode(model, prompts, max_tokens, Engine.step)
    finally:
        for layer, counter in counting.items():
            layer.mlp = counter.mixture
    return [
        num for counter in counting.values() for num in counter.nums[1:]
    ]  # the first step computes the prompts
