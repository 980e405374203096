"""Damage copies of the shipped checkpoint at random: each must load, or be refused in a sentence."""

import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random, SystemRandom
from typing import Annotated

import typer
from rich.progress import track

from scripts.author.damage_kinds import damage
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import ENDING_SIGNALS, signals_held, usage_errors
from scripts.packages import choose_package

SECONDS_PER_LOAD = 60
FILES = ("*.json", "*.safetensors")

Count = Annotated[int, typer.Option(min=1, help="How many copies to damage.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Damage them in the same ways again.")]
Ref = Annotated[bool, typer.Option("--ref", help="Load them by tiny_llm_ref, the finished solution.")]


def main(count: Count = 1000, first_seed: Seed = None, ref: Ref = False) -> None:
    """Load damaged copies of the shipped checkpoint: each must work, or raise a ValueError or an OSError.

    Copy n is damaged with the seed plus n, so that --count 1 with its own seed repeats it alone.

    Example: pdm run author damage --ref --count 1000
    """
    with usage_errors():
        choose_package(ref)
        start = SystemRandom().randrange(2**32) if first_seed is None else first_seed
        outcomes = track(load_apart(range(start, start + count), ref), "checkpoints", total=count)
        faults = [f"seed {seed}: {fault}" for seed, fault in outcomes if fault is not None]
        print(*faults, f"{count - len(faults)} of {count} damaged checkpoints hold, seed {start}", sep="\n")
        sys.exit(1 if faults else 0)


def load_in_time(seed: int) -> str | None:
    """`load_damaged`, in a process that ends if it takes too long."""
    signal.alarm(SECONDS_PER_LOAD)
    fault = load_damaged(seed)
    signal.alarm(0)
    return fault


def load_apart(
    seeds: range, ref: bool, load: Callable[[int], str | None] = load_in_time
) -> Iterator[tuple[int, str | None]]:
    """Each seed and what is said of it, in a process that one of them may end."""
    spawn = multiprocessing.get_context("spawn")
    remaining = iter(seeds)
    seed = next(remaining, None)
    while seed is not None:
        with ProcessPoolExecutor(1, spawn, start_loading, (ref,)) as process:
            is_alive = True
            while is_alive and seed is not None:
                try:
                    with signals_held():  # the first one starts the process
                        result = process.submit(load, seed)
                    yield seed, result.result()
                except BrokenProcessPool:
                    is_alive = False
                    yield seed, f"the process died, or took more than {SECONDS_PER_LOAD} s"
                seed = next(remaining, None)


def start_loading(ref: bool) -> None:
    """Choose the package, in a process that what would end it ends at once and without a word."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    choose_package(ref)


def load_damaged(seed: int) -> str | None:
    """Damage a copy and load it, packed and expanded: what was raised but an error in a sentence, if any."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pattern in FILES:
            for file in resolve_checkpoint(SHIPPED_MODEL).glob(pattern):
                shutil.copyfile(file, folder / file.name)
        what = damage(folder, Random(seed))
        for load in (load_as_it_serves, load_expanded):
            try:
                load(folder)
            except (ValueError, OSError) as error:
                if not str(error).strip() or "\n" in str(error):
                    return f"{what}: {type(error).__name__} of no sentence: {error!r}"
            except BaseException as error:  # a library in Rust raises what is no Exception
                return f"{what}: {type(error).__name__}: {error}"
    return None


def load_as_it_serves(folder: Path) -> None:
    """Load model and tokenizer, and compute a token."""
    import mlx.core as mx

    from tiny_llm import load

    model, tokenizer = load(folder)
    tokenizer.decode(tokenizer.encode("In the beginning"))
    mx.eval(model(mx.array([[3]])))


def load_expanded(folder: Path) -> None:
    """Load the model as on a machine without kernels."""
    import mlx.core as mx

    from tiny_llm.model.loader import load_model

    mx.eval(load_model(folder)(mx.array([[3]])))


if __name__ == "__main__":
    typer.run(main)
