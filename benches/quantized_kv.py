"""Keys and values in floats and in quantized blocks: bytes, requests that fit, divergence and speed.

pdm run bench kv --model smollm2
"""

import time
from functools import partial
from statistics import median
from typing import Annotated, NamedTuple

import mlx.core as mx
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benches.load import take, token_stream
from benches.rounds import Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm import (
    BlockManager,
    ModelRunner,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerOutput,
    Sequence,
    scaled_dot_product_attention_grouped,
)
from tiny_llm.model.roofline import cache_bytes_per_token
from tiny_llm.paging.quantized_kv_pool import quantized_bytes_per_token

BLOCK_SIZE = 16
CHUNK = 128  # tokens that are stored at once
NUM_STEPS = 9  # that are timed; the first one warms up
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
SIDES: dict[str, int | None] = {"floats": None, "keys 8, values 8 bits": 8, "keys 8, values 4 bits": 4}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Memory = Annotated[int, typer.Option(min=1, help="MiB for keys and values.")]
Tokens = Annotated[int, typer.Option(min=64, help="Tokens of a request, and of each text that is compared.")]
Texts = Annotated[int, typer.Option(min=1, help="Texts that are compared.")]
Batch = Annotated[int, typer.Option(min=1, help="Requests that decode.")]


class Likeness(NamedTuple):
    """How far distributions are from those with floats, and how often the likeliest token is the same."""

    divergence: float
    agreement: float


def main(
    model: Model = SHIPPED_MODEL,
    memory: Memory = 64,
    tokens: Tokens = 1024,
    texts: Texts = 4,
    batch: Batch = 8,
    repeats: Repeats = None,
) -> Results:
    """Compare keys and values in floats with quantized ones: what they take, what they change, how fast.

    Example: pdm run bench kv --model smollm2 --tokens 2048
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        rounds = Rounds(repeats)
        loaded, tokenizer = load_by_name(model)
        most = loaded.config.max_position_embeddings
        if tokens > most:
            raise ValueError(f"--tokens must be at most {most}, which the model supports, got {tokens}")
        stream = token_stream(model, tokenizer)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        console.print(f"\nkeys and values of a request of {tokens:,} tokens, in {memory} MiB:")
        console.print(table_of_sizes(loaded, tokens, memory << 20))
        samples = [take(stream, 997 * number, tokens) for number in range(texts)]
        console.print(f"\ndistributions of the next token, {texts} x {tokens:,} tokens, against floats:")
        console.print(table_of_likeness(loaded, samples))
        by_context = {
            n: rounds.in_turns(SIDES, partial(decode_ms, loaded, batch, n), itself, f"{n} tokens")
            for n in CONTEXTS
            if n < most
        }
        console.print(f"\nms per step of {batch} decodes, by the context of each:")
        console.print(table_of_times(by_context))
    return Results(rounds)


def bytes_per_token(model: Qwen3Model, kv_bits: int | None) -> int:
    """Bytes of a token's keys and values, in the type that the model computes in or quantized."""
    if kv_bits is None:
        return cache_bytes_per_token(model.config, model.hidden_states(mx.array([[0]])).dtype)
    return quantized_bytes_per_token(model.config, kv_bits)


def table_of_sizes(model: Qwen3Model, num_tokens: int, num_bytes: int) -> Table:
    """Bytes per token, and how many requests fit. Each also needs a block of floats for its newest tokens."""
    table = new_table("", "bytes per token", "bits per number", "requests that fit")
    floats = bytes_per_token(model, None)
    numbers = cache_bytes_per_token(model.config, mx.uint8)  # one byte each
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    for side, kv_bits in SIDES.items():
        own = bytes_per_token(model, kv_bits)
        tail = 0 if kv_bits is None else floats * BLOCK_SIZE
        fit = num_bytes // (num_blocks * BLOCK_SIZE * own + tail)
        table.add_row(side, f"{own:,}", f"{own * 8 / numbers:.2f}", str(fit))
    return table


def table_of_likeness(model: Qwen3Model, texts: list[tuple[int, ...]]) -> Table:
    """Mean over all positions of all texts."""
    table = new_table("", "KL divergence", "top-1 agreement")
    exact = [log_probabilities(model, None, text) for text in texts]
    for side, kv_bits in SIDES.items():
        if kv_bits is not None:
            found = [
                likeness(expected, log_probabilities(model, kv_bits, text))
                for expected, text in zip(exact, texts, strict=True)
            ]
            divergence, agreement = np.mean(found, axis=0)
            table.add_row(side, f"{divergence:.2e}", f"{agreement:.2%}")
    return table


def likeness(expected: mx.array, actual: mx.array) -> Likeness:
    """Compare the distributions of a text's next tokens, [tokens, V] log-probabilities each."""
    divergence = mx.sum(mx.exp(expected) * (expected - actual), axis=-1)
    is_same = mx.argmax(expected, axis=-1) == mx.argmax(actual, axis=-1)
    return Likeness(float(mx.mean(divergence)), float(mx.mean(is_same)))


def log_probabilities(model: Qwen3Model, kv_bits: int | None, text: tuple[int, ...]) -> mx.array:
    """Compute a text in chunks; the log-probabilities of each next token, [tokens, V]."""
    blocks = BlockManager(-(-len(text) // BLOCK_SIZE), BLOCK_SIZE)
    runner = ModelRunner(model, blocks, kv_bits=kv_bits)
    sequence = Sequence(0, text)
    chunks = []
    for start in range(0, len(text), CHUNK):
        entry = ScheduledTokens(sequence, start, min(CHUNK, len(text) - start), False)
        blocks.allocate(sequence, entry.num_tokens)
        batch = runner.batch_of(SchedulerOutput((entry,)))
        caches = [runner.cache_of(layer, batch) for layer in range(model.num_hidden_layers)]
        states = model.hidden_states(batch.token_ids, batch.positions, caches)
        logits = model.logits(states)[:, -1].astype(mx.float32)
        chunks.append(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        mx.eval(chunks[-1], runner.pool.state)
        sequence.num_computed_tokens = entry.end
    return mx.concatenate(chunks)


def decode_ms(model: Qwen3Model, batch: int, context: int, side: str, _: int) -> float:
    """Median milliseconds of a step of decodes behind contexts of random keys and values."""
    blocks = BlockManager(batch * (context // BLOCK_SIZE + 1), BLOCK_SIZE)
    runner = ModelRunner(model, blocks, kv_bits=SIDES[side])
    sequences = [Sequence(number, [1] * (context + 1)) for number in range(batch)]
    for sequence in sequences:
        fill(model, runner, sequence)
    step = SchedulerOutput(tuple([ScheduledTokens(each, context, 1, True) for each in sequences]))
    params = {sequence.id: SamplingParams() for sequence in sequences}
    seconds = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        runner.run(step, params)
        seconds.append(time.perf_counter() - start)
    runner.close()
    return 1e3 * median(seconds[1:])


def fill(model: Qwen3Model, runner: ModelRunner, sequence: Sequence) -> None:
    """Store random keys and values for all tokens of a sequence but the last, without computing them."""
    config = model.config
    attention, runner.attention = runner.attention, lambda query, *_: query
    context = sequence.num_tokens - 1
    for start in range(0, context, CHUNK):
        entry = ScheduledTokens(sequence, start, min(CHUNK, context - start), False)
        runner.blocks.allocate(sequence, entry.num_tokens)
        batch = runner.batch_of(SchedulerOutput((entry,)))
        for layer in range(model.num_hidden_layers):
            query = mx.zeros((entry.num_tokens, config.num_attention_heads, 1, config.head_dim))
            key, value = mx.random.normal(
                (2, entry.num_tokens, config.num_key_value_heads, 1, config.head_dim)
            )
            runner.cache_of(layer, batch).attend(query, key, value, scaled_dot_product_attention_grouped)
        mx.eval(runner.pool.state)
        sequence.num_computed_tokens = entry.end
    runner.blocks.allocate(sequence, 1)
    runner.attention = attention


def table_of_times(by_context: dict[int, dict[str, list[float]]]) -> Table:
    """A row per context."""
    table = new_table("context", *SIDES)
    for n, runs in by_context.items():
        base = median(runs["floats"])
        cells = [f"{median(found):.2f} ({base / median(found):.2f}x)" for found in runs.values()]
        table.add_row(f"{n:,}", *cells)
    return table


def new_table(first: str, *headings: str) -> Table:
    """A table whose numbers end below each other."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
