"""A prompt whose keys and values are computed, restored from files or still in memory.

pdm run bench kept
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer

from benches.mixed import report
from benches.rounds import Repeats, Rounds
from benches.sampling import SIZES, random_model
from benches.speed import machine
from benches.watched import Results
from tiny_llm import Engine, SamplingParams, SchedulerConfig, overlapped
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

BLOCK_SIZE, MAX_SEQ_LEN = 16, 2048
NUM_BEFORE, NUM_BESIDE = 20, 4  # decodes of a stream before a prompt comes, and after its answer has begun
MAX_BYTES, MAX_FETCHES = 10**10, 64
Tokens = Annotated[int, typer.Option(min=BLOCK_SIZE, max=2000, help="Tokens of the prompt.")]
KINDS: dict[str, int | None] = {"floats": None, "8 bits": 8}
SIDES = ("computed", "restored", "in memory")


class Times(NamedTuple):
    """Until the answer's first token, and the longest pause of a stream beside it; in milliseconds."""

    ttft: float
    pause: float

    def figures(self) -> dict[str, float]:
        return self._asdict()


def main(tokens: Tokens = 2000, repeats: Repeats = None) -> Results:
    """Time a prompt that is computed, restored from files or still in memory, while another request decodes.

    The model has random weights and the size of SmolLM2. The files are in the system's cache.

    Example: pdm run bench kept --tokens 1000
    """
    rounds = Rounds(repeats)
    typer.echo(", ".join(map(str, machine().values())))
    model = random_model(SIZES["SmolLM2-135M"])
    for kind, kv_bits in KINDS.items():
        with TemporaryDirectory() as folder:
            prompt = list(range(1000, 1000 + tokens))
            with engine_on(model, Path(folder), kv_bits) as (engine, kept):
                engine.generate([prompt], SamplingParams(max_tokens=1))
                start = time.perf_counter()
                for _ in kept.when_idle():
                    pass
                kept.files.close()
                seconds = time.perf_counter() - start
            size = kept.files.num_store_bytes / max(1, kept.files.num_stores)
            typer.echo(
                f"\n{kind}: {kept.files.num_stores} blocks of {size / 1e6:.2f} MB, written in {seconds:.2f} s"
            )
            run = partial(time_prompt, model, Path(folder), kv_bits, prompt)
            times = rounds.in_turns(SIDES, run, Times.figures, kind)
            for field, what in (("ttft", "first token"), ("pause", "longest pause")):
                report(what, {side: [getattr(each, field) / 1e3 for each in times[side]] for side in SIDES})
    return Results(rounds)


@contextmanager
def engine_on(model: Any, folder: Path, kv_bits: int | None) -> Iterator[tuple[Engine, KeptBlocks]]:
    """An engine as the server makes it, with files in a folder."""
    kept = KeptBlocks(KvFiles(folder, MAX_BYTES, f"bits {kv_bits}"))
    blocks = TieredBlockManager(
        2 * MAX_SEQ_LEN // BLOCK_SIZE, BLOCK_SIZE, False, 0.0, kept.files.load, MAX_FETCHES
    )
    config = SchedulerConfig(128, 2, max_num_prefill_only_tokens=512)
    execution = kept.execution(overlapped)
    with Engine(
        model, EndlessTokenizer(), config, MAX_SEQ_LEN, blocks, kv_bits=kv_bits, execution=execution
    ) as engine:
        yield engine, kept


def time_prompt(
    model: Any, folder: Path, kv_bits: int | None, prompt: list[int], side: str, turn: int
) -> Times:
    """Serve the prompt beside a stream. Nothing is restored from a folder that is empty."""
    with (
        TemporaryDirectory() as empty,
        engine_on(model, Path(empty) if side == "computed" else folder, kv_bits) as (engine, _),
    ):
        if side == "in memory":
            engine.generate([prompt], SamplingParams(max_tokens=1))
        stream = engine.add_request([3] * 8, SamplingParams(max_tokens=400))
        for _ in range(NUM_BEFORE):
            engine.step()
        start = last = time.perf_counter()
        first, pause, number, left = None, 0.0, engine.add_request(prompt), NUM_BESIDE
        while left:
            step, now = engine.step(), time.perf_counter()
            if stream in step.sampled:
                pause, last = max(pause, now - last), now
            if first is None and number in step.sampled:
                first = now - start
            left -= first is not None
        assert first is not None
        return Times(first * 1e3, pause * 1e3)
