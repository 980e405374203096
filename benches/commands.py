"""`pdm run bench` measures this course's engine beside others; `pdm run bench NAME` one thing at a time."""

import typer

from benches import (
    bandwidth,
    blocks,
    budget,
    chunking,
    context,
    dispatches,
    experts,
    flash_attention,
    growth,
    long,
    matmul,
    mixed,
    parts,
    prefix,
    pressure,
    quantized_kv,
    race,
    ranks,
    sampling,
    scheduler,
    server,
    serving,
    speculation,
    speed,
    structured,
)
from benches.rounds import Repeats
from benches.watched import Mine, watched
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.group import new_group

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


for name, benchmark, summary in (
    ("serving", serving.main, "Requests that arrive at random, by several engines"),
    ("server", server.main, "The server over HTTP: the rate it sustains, and what HTTP costs"),
    ("growth", growth.main, "One more token as the text grows, without a cache and with one"),
    ("context", context.main, "A decode as the context grows"),
    ("long", long.main, "Long prompts in chunks, and decoding behind them"),
    ("bandwidth", bandwidth.main, "Memory bandwidth, and the decoding it allows"),
    ("matmul", matmul.main, "The product with packed weights, by each means"),
    ("race", race.main, "The kernels against MLX's operations, and which of them models use"),
    ("flash", flash_attention.main, "FlashAttention against plain attention: time and memory"),
    ("dispatches", dispatches.main, "What a GPU starts for a decode step, beside mlx-lm"),
    ("parts", parts.main, "Where the time of a decode and of a prefill goes"),
    ("chunking", chunking.main, "The demo in chunks against whole prompts"),
    ("budget", budget.main, "The demo by three phases and by one budget, and predicted"),
    ("scheduler", scheduler.main, "A step of the scheduler alone, as more requests wait"),
    ("blocks", blocks.main, "The cache's memory in slots and in blocks, and who fits"),
    ("mixed", mixed.main, "A chunk and decodes in one forward against two"),
    ("sampling", sampling.main, "Rows that are sampled against greedy ones"),
    ("prefix", prefix.main, "Conversations with prefix caching and without"),
    ("pressure", pressure.main, "A pool that is too small, priorities and a latency target"),
    ("speculation", speculation.main, "Decoding with drafts and without, at several batch sizes"),
    ("experts", experts.main, "Experts that a step reads as more requests decode"),
    ("ranks", ranks.main, "A decode on several ranks beside one process, and predicted"),
    ("structured", structured.main, "A decode step with grammars and without"),
    ("kv", quantized_kv.main, "Keys and values in floats and quantized: bytes, likeness, speed"),
):
    app.command(name, short_help=summary)(watched(benchmark))
