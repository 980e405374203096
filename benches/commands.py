"""`pdm run bench` measures this course's engine beside others; `pdm run bench NAME` one thing at a time."""

from functools import partial

import typer

from benches import speed
from benches.rounds import Repeats
from benches.watched import Mine, watched
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.group import add_later, main_of, new_group
from scripts.options import Command

SIMULATED = ("benches.routing",)

app = new_group()


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    model: speed.Model = SHIPPED_MODEL,
    repeats: Repeats = None,
    engine: speed.Engines = None,
    output: speed.Output = None,
    mine: Mine = False,
) -> None:
    """Measure tokens per second of every engine that is installed here, or one thing by its NAME.

    Example: pdm run bench --model smollm2 --engine tiny-llm --engine "mlx-lm as installed"
    """
    if context.invoked_subcommand is None:
        watched(speed.main)(model=model, repeats=repeats, engine=engine, output=output, mine=mine)


def benchmark_of(module: str) -> Command:
    """The command of a module."""
    return watched(main_of(module), module in SIMULATED)


for name, module, summary in (
    ("serving", "serving", "Requests that arrive at random, by several engines"),
    ("server", "server", "The server over HTTP: the rate it sustains, and what HTTP costs"),
    ("growth", "growth", "One more token as the text grows, without a cache and with one"),
    ("context", "context", "A decode as the context grows"),
    ("long", "long", "Long prompts in chunks, and decoding behind them"),
    ("bandwidth", "bandwidth", "Memory bandwidth, and the decoding it allows"),
    ("matmul", "matmul", "The product with packed weights, by each means"),
    ("race", "race", "The kernels against MLX's operations, and which of them models use"),
    ("flash", "flash_attention", "FlashAttention against plain attention: time and memory"),
    ("dispatches", "dispatches", "What a GPU starts for a decode step, beside mlx-lm"),
    ("parts", "parts", "Where the time of a decode and of a prefill goes"),
    ("chunking", "chunking", "The demo in chunks against whole prompts"),
    ("budget", "budget", "The demo by three phases and by one budget, and predicted"),
    ("scheduler", "scheduler", "A step of the scheduler alone, as more requests wait"),
    ("blocks", "blocks", "The cache's memory in slots and in blocks, and who fits"),
    ("mixed", "mixed", "A chunk and decodes in one forward against two"),
    ("sampling", "sampling", "Rows that are sampled against greedy ones"),
    ("prefix", "prefix", "Conversations with prefix caching and without"),
    ("kept", "kept", "A prompt that is computed, restored from files or still in memory"),
    ("pressure", "pressure", "A pool that is too small, priorities and a latency target"),
    ("speculation", "speculation", "Decoding with drafts and without, at several batch sizes"),
    ("experts", "experts", "Experts that a step reads as more requests decode"),
    ("ranks", "ranks", "A decode on several ranks beside one process, and predicted"),
    ("routing", "routing", "Conversations on several simulated engines, by routing policy"),
    ("structured", "structured", "A decode step with grammars and without"),
    ("kv", "quantized_kv", "Keys and values in floats and quantized: bytes, likeness, speed"),
):
    add_later(app, name, summary, partial(benchmark_of, f"benches.{module}"))
