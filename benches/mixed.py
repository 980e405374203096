"""A chunk and decodes in one forward, against two; and decodes on a cache each and on blocks.

pdm run bench mixed --decodes 8 --context 100
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Annotated

import typer

from benches.rounds import MOST, Repeats, Rounds, itself, written
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from tiny_llm import (
    BlockManager,
    Engine,
    ModelRunner,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    UnlimitedBlocks,
)
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

CHUNKS = (16, 64, 256)
BLOCK_SIZE = 16
NUM_DECODING = (1, 8, 32)
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Decodes = Annotated[int, typer.Option(min=1, help="Sequences that decode beside the chunk.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens of each, and before the chunk in its prompt.")]


def main(
    model: Model = SHIPPED_MODEL, decodes: Decodes = 8, context: Context = 100, repeats: Repeats = None
) -> Results:
    """Time both sides in turns and print medians, least and most.

    Example: pdm run bench mixed --model smollm2
    """
    from scripts.checkpoints.models import load_by_name

    with usage_errors():
        loaded, _ = load_by_name(model)
    typer.echo(", ".join(map(str, machine().values())))
    typer.echo(f"\n{decodes} decodes and a chunk, behind contexts of {context} tokens:")
    rounds = Rounds(repeats)
    for chunk in CHUNKS:
        name = f"chunk of {chunk}"
        report(name, alternate(steps(loaded, chunk, decodes, context), rounds, name))
    typer.echo(f"\na step in which all decode, behind contexts of {context} tokens:")
    for num in NUM_DECODING:
        sides = {name: each.step for name, each in decoding(loaded, num, context, repeats or MOST).items()}
        report(f"of {num}", alternate(sides, rounds, f"of {num}"))
    return Results(rounds)


def alternate(sides: Mapping[str, Callable[[], object]], rounds: Rounds, name: str) -> dict[str, list[float]]:
    """Seconds of each side, run in turns; the first round warms up."""

    def seconds_of(side: str, turn: int) -> float:
        start = time.perf_counter()
        sides[side]()
        return time.perf_counter() - start

    return rounds.in_turns(sides, seconds_of, itself, name)


def report(what: str, seconds: Mapping[str, list[float]]) -> None:
    """A line for all sides, with the ratio of the last one's median to the first one's."""
    texts = [
        f"{name} {median(all) * 1e3:.1f} ms ({min(all) * 1e3:.1f} to {max(all) * 1e3:.1f})"
        for name, all in seconds.items()
    ]
    medians = [median(all) for all in seconds.values()]
    typer.echo(f"  {what:<14}{', '.join(texts)}, ratio {medians[-1] / medians[0]:.2f}")


def steps(model: Qwen3Model, chunk: int, decodes: int, context: int) -> dict[str, Callable[[], None]]:
    """The same step by two passes and by one. It is computed again and again; what it stores is the same."""
    ends = [context] * decodes + [context + chunk]
    blocks = BlockManager(sum(-(-end // BLOCK_SIZE) for end in ends), BLOCK_SIZE)
    sequences = [Sequence(id, [3 + (7 * id + i) % 50 for i in range(end)]) for id, end in enumerate(ends)]
    for sequence in sequences:
        blocks.allocate(sequence, sequence.num_tokens)
    runner = ModelRunner(model, blocks)
    params = {sequence.id: SamplingParams() for sequence in sequences}
    whole = SchedulerOutput(tuple(ScheduledTokens(each, 0, each.num_tokens, False) for each in sequences))
    runner.run(whole, params)
    entries = [ScheduledTokens(each, context - 1, 1, True) for each in sequences[:-1]]
    of_chunk = ScheduledTokens(sequences[-1], context, chunk, True)

    def apart() -> None:
        runner.run(SchedulerOutput((of_chunk,)), params)
        runner.run(SchedulerOutput(tuple(entries)), params)

    def together() -> None:
        runner.run(SchedulerOutput((*entries, of_chunk)), params)

    return {"apart": apart, "together": together}


def decoding(model: Qwen3Model, num: int, context: int, repeats: int) -> dict[str, Engine]:
    """An engine with a cache for each sequence, and one with blocks; in both so many decode."""
    max_seq_len = context + repeats + 3
    pool = BlockManager(num * -(-max_seq_len // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(num * context, num)

    def prefilled(blocks: Blocks) -> Engine:
        engine = Engine(model, EndlessTokenizer(), config, max_seq_len, blocks)
        for seed in range(num):
            engine.add_request([3 + (7 * seed + i) % 50 for i in range(context)])
        engine.step()
        return engine

    sides: dict[str, Blocks] = {"a cache each": UnlimitedBlocks(), "blocks": pool}
    return written({name: partial(prefilled, blocks) for name, blocks in sides.items()})
