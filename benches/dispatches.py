"""Dispatches of a decode step on a GPU, this course's model beside mlx-lm's: counted, not timed.

A GPU starts a kernel for each operation of MLX's graph, unless the operation only makes a view of existing
memory, and each start takes some microseconds. The graph is the same on any machine, so no GPU is needed to
count: the course's own kernels give zeros.
"""

import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer

from accelerated.pretrained import parts_for
from benches.mlx_lm_side import own_model
from kernel_runtime.gpu_kernel import GpuKernel, at_least_smallest
from kernel_runtime.launch import Launch, Target
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from tiny_llm import (
    BlockManager,
    ModelRunner,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerOutput,
    Sequence,
)
from tiny_llm.generation.generate import to_logprobs
from tiny_llm.kernels.dispatch_paged_attention import dispatch_paged_attention
from tiny_llm.model.registry import load_checkpoint

# isort: split
import mlx.core as mx  # after the package, which puts a fast BLAS in place before MLX is loaded
from mlx_lm.models.cache import BatchKVCache, KVCache

NODE = re.compile(r'\{ (\d+) \[label ="(\w+)"')
VIEWS = {
    *("AsStrided", "Broadcast", "BroadcastAxes", "Depends", "ExpandDims", "Flatten", "Reshape", "Slice"),
    *("Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"),
}
"""Operations that compute nothing; a reshape may copy, but not what a decode step gives it."""
COPIES_EACH_INPUT = ("Concatenate",)
ONE_KERNEL = (
    (mx.fast, "rms_norm"),
    (mx.fast, "rope"),
    (mx.fast, "scaled_dot_product_attention"),
    (mx, "dequantize"),
)
"""Functions that are a kernel on a GPU and several operations on the CPU."""
NUM_CACHED = 60
NUM_ROWS = 8
COURSE, MLX_LM = "course", "mlx-lm"
Launches = Counter[str]
"""How many there are of each operation."""
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]


def main(model: Model = SHIPPED_MODEL) -> None:
    """Count what a GPU starts for a greedy token of one row, and for one of each of eight.

    Example: pdm run bench dispatches --model smollm2
    """
    with usage_errors():
        path = resolve_checkpoint(model)
    steps = count_steps(path)
    sides = [launches for pair in steps.values() for launches in pair]
    print(f"{'':28}{''.join(f'{work:>20}' for work in steps)}")
    print(f"{'':28}{len(steps) * f'{COURSE:>12}{MLX_LM:>8}'}")
    for name in sorted(sum(sides, Counter()), key=lambda name: (*(-side[name] for side in sides), name)):
        print(f"{name:28}{columns(side[name] for side in sides)}")
    print(f"{'together':28}{columns(side.total() for side in sides)}")


def columns(counts: Iterable[int]) -> str:
    """Counts of this course and mlx-lm in turns."""
    return "".join(f"{count:{width}}" for count, width in zip(counts, itertools.cycle((12, 8)), strict=False))


def count_steps(checkpoint: Path) -> dict[str, tuple[Launches, Launches]]:
    """Dispatches of a decode step by this course's model and by mlx-lm's, by what is decoded."""
    theirs = own_model(checkpoint)
    theirs.set_dtype(mx.float32)
    on_gpu = patch.object(mx, "default_device", lambda: mx.Device(mx.gpu))
    with on_gpu, patch.dict(os.environ, TINY_LLM_KERNELS="own"):
        ours = load_checkpoint(checkpoint, *parts_for(checkpoint, mx.float32))
        return {
            "1 row": (count_dense(ours), count_mlx_lm(theirs, 1)),
            f"{NUM_ROWS} rows": (count_paged(ours), count_mlx_lm(theirs, NUM_ROWS)),
        }


def count_dense(model: Qwen3Model) -> Launches:
    """A step of one row with its own cache."""
    cache = model.create_kv_cache()

    def step(num_tokens: int) -> None:
        tokens = mx.zeros((1, num_tokens), mx.int32)
        logprobs = to_logprobs(model(tokens, cache[0].offset, cache, 1))
        mx.eval(mx.argmax(logprobs, axis=-1), [layer.state for layer in cache])

    return count_second(step)


def count_paged(model: Qwen3Model) -> Launches:
    """A step of the engine's runner: rows in blocks of a pool."""
    blocks = BlockManager(2 * NUM_ROWS, 2 * NUM_CACHED)
    sequences = [Sequence(id, [0] * (NUM_CACHED + 1)) for id in range(NUM_ROWS)]
    for sequence in sequences:
        blocks.allocate(sequence, sequence.num_tokens)
    runner = ModelRunner(model, blocks, dispatch_paged_attention)
    params = dict.fromkeys(range(NUM_ROWS), SamplingParams())

    def step(num_tokens: int) -> None:
        is_last = num_tokens == 1
        start = NUM_CACHED if is_last else 0
        entries = [ScheduledTokens(sequence, start, num_tokens, is_last) for sequence in sequences]
        runner.run(SchedulerOutput(tuple(entries)), params)

    return count_second(step)


def count_mlx_lm(model: Any, num_rows: int) -> Launches:
    """A step of mlx-lm's generators."""
    layers = range(len(model.layers))
    cache = [KVCache() if num_rows == 1 else BatchKVCache([0] * num_rows) for _ in layers]

    def step(num_tokens: int) -> None:
        tokens = mx.zeros((num_rows, num_tokens), mx.int32)
        logits = model(tokens, cache=cache)[:, -1, :]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(mx.argmax(logprobs, axis=-1), [layer.state for layer in cache])

    return count_second(step)


def count_second(step: Callable[[int], None]) -> Launches:
    """What a step of one token a row starts, after one of NUM_CACHED."""
    with counting() as launches:
        step(NUM_CACHED)
        launches.clear()
        step(1)
    return launches


@contextmanager
def counting() -> Iterator[Launches]:
    """Count what is evaluated inside."""
    launches: Launches = Counter()
    evaluate = mx.eval

    def count_pending(*arrays: Any) -> None:
        found = [x for x in flat(arrays) if isinstance(x, mx.array)]
        launches.update(pending(found))
        evaluate(found)

    def launch_kernel(kernel: GpuKernel, target: Target, launch: Launch) -> mx.array:
        inputs = [at_least_smallest(x) for x in launch.inputs]
        count_pending(inputs)
        launches[f"kernel {kernel.name}"] += 1
        launches["copy for a kernel"] += sum(
            name not in kernel.strided and not np.array(x, copy=False).flags.c_contiguous
            for name, x in zip(kernel.inputs, inputs, strict=True)
        )
        zeros = mx.zeros(launch.shape, launch.dtype)
        evaluate(zeros)
        return zeros

    def as_one(name: str, function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(*arguments: Any, **named: Any) -> mx.array:
            count_pending(arguments, list(named.values()))
            launches[name] += 1
            result = function(*arguments, **named)
            evaluate(result)
            return result

        return call

    with ExitStack() as patches:
        patches.enter_context(patch.object(GpuKernel, "__call__", launch_kernel))
        for name in ("eval", "async_eval"):
            patches.enter_context(patch.object(mx, name, count_pending))
        for owner, name in ONE_KERNEL:
            patches.enter_context(patch.object(owner, name, as_one(name, getattr(owner, name))))
        yield launches


def pending(arrays: list[mx.array]) -> Launches:
    """What these arrays still wait for."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    text = graph.getvalue()
    launches: Launches = Counter()
    for node, name in NODE.findall(text):
        if name not in VIEWS:
            kind = "Compiled" if name.startswith("Compiled") else name
            launches[kind] += text.count(f" -> {node}\n") if name in COPIES_EACH_INPUT else 1
    return launches


def flat(values: Any) -> list[Any]:
    """All that is in lists and tuples, however deep."""
    return [x for value in values for x in flat(value)] if isinstance(values, list | tuple) else [values]
