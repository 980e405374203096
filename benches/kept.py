"""A prompt whose keys and values are computed, restored from files or still in memory.

pdm run bench kept --random
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer

from benches.mixed import report
from benches.rounds import Repeats, Rounds
from benches.sampling import SIZES, random_model
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from tiny_llm import Engine, Qwen3Model, SamplingParams, SchedulerConfig, overlapped
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

BLOCK_SIZE, MAX_BYTES, MAX_FETCHES = 16, 10**10, 64
LIKE_SMOLLM2 = "SmolLM2-135M"
NUM_BEFORE, NUM_BESIDE = 20, 4  # decodes of a stream before a prompt comes, and after its answer has begun
KINDS: dict[str, int | None] = {"floats": None, "8 bits": 8}
SIDES = ("computed", "in memory", "restored")
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Random = Annotated[bool, typer.Option("--random", help=f"Random weights, as large as {LIKE_SMOLLM2}.")]
Tokens = Annotated[int, typer.Option(min=BLOCK_SIZE, help="Tokens of the prompt.")]


class Times(NamedTuple):
    """Until the answer's first token, and the longest pause of a stream beside it; in seconds."""

    ttft: float
    pause: float


def main(
    model: Model = SHIPPED_MODEL, random: Random = False, tokens: Tokens = 2000, repeats: Repeats = None
) -> Results:
    """Time a prompt that is computed, restored from files or still in memory, while another request decodes.

    The files are in the system's cache.

    Example: pdm run bench kept --random --tokens 1000
    """
    from scripts.checkpoints.models import load_by_name

    rounds = Rounds(repeats)
    with usage_errors():
        loaded = random_model(SIZES[LIKE_SMOLLM2]) if random else load_by_name(model)[0]
        most = loaded.config.max_position_embeddings - 1
        if tokens > most:
            raise ValueError(f"--tokens must be at most {most} with this model, got {tokens}")
    typer.echo(", ".join(map(str, machine().values())))
    prompt = [3 + i % 50 for i in range(tokens)]
    for kind, kv_bits in KINDS.items():
        with TemporaryDirectory() as folder:
            typer.echo(f"\n{kind}: {keep(loaded, Path(folder), kv_bits, prompt)}")
            run = partial(time_prompt, loaded, Path(folder), kv_bits, prompt)
            times = rounds.in_turns(SIDES, run, Times._asdict, kind)
        report("first token", {side: [each.ttft for each in times[side]] for side in SIDES})
        report("longest pause", {side: [each.pause for each in times[side]] for side in SIDES})
    return Results(rounds)


@contextmanager
def engine_on(model: Qwen3Model, folder: Path, kv_bits: int | None) -> Iterator[tuple[Engine, KeptBlocks]]:
    """An engine as the server makes it, with files in a folder and room for the prompt and the stream."""
    kept = KeptBlocks(KvFiles(folder, MAX_BYTES, f"bits {kv_bits}"))
    most: int = model.config.max_position_embeddings
    blocks = TieredBlockManager(
        2 * -(-most // BLOCK_SIZE), BLOCK_SIZE, False, 0.0, kept.files.load, MAX_FETCHES
    )
    config = SchedulerConfig(128, 2, max_num_prefill_only_tokens=512)
    parts = model, EndlessTokenizer(), config, most, blocks
    with Engine(*parts, kv_bits=kv_bits, execution=kept.execution(overlapped)) as engine:
        yield engine, kept


def keep(model: Qwen3Model, folder: Path, kv_bits: int | None, prompt: list[int]) -> str:
    """Compute the prompt and write its blocks. Return what that was, in words."""
    with engine_on(model, folder, kv_bits) as (engine, kept):
        engine.generate([prompt], SamplingParams(max_tokens=1))
        start = time.perf_counter()
        for _ in kept.when_idle():
            pass
        kept.files.close()
        seconds, files = time.perf_counter() - start, kept.files
    return f"{files.num_stores} blocks, {files.num_store_bytes / 1e6:.1f} MB, written in {seconds:.2f} s"


def time_prompt(
    model: Qwen3Model, folder: Path, kv_bits: int | None, prompt: list[int], side: str, turn: int
) -> Times:
    """Serve the prompt beside a stream. Nothing is restored from a folder that is empty."""
    with TemporaryDirectory() as empty:
        folder = Path(empty) if side == "computed" else folder
        with engine_on(model, folder, kv_bits) as (engine, _):
            if side == "in memory":
                engine.generate([prompt], SamplingParams(max_tokens=1))
            stream = engine.add_request([3] * 8)
            for _ in range(NUM_BEFORE):
                engine.step()
            start = last = time.perf_counter()
            ttft, pause, left = 0.0, 0.0, NUM_BESIDE
            number = engine.add_request(prompt)
            while left:
                step, now = engine.step(), time.perf_counter()
                if stream in step.sampled:
                    pause, last = max(pause, now - last), now
                if not ttft and number in step.sampled:
                    ttft = now - start
                left -= ttft > 0
            return Times(ttft, pause)
