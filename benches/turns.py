"""Both sides of a comparison in turns, so that what else the machine does hits all of them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from scripts.checkpoints.files import resolve_checkpoint
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder
from scripts.run.runs import make_recorder, read_prompts, serve

T = TypeVar("T")


def in_turns(sides: Iterable[str], repeats: int, run: Callable[[str, int], T]) -> dict[str, list[T]]:
    """What `run(side, round)` returns, by side and round; round 0 warms up and is left out."""
    names = list(sides)
    results: dict[str, list[T]] = {name: [] for name in names}
    notes = Console(stderr=True)
    for turn in track(range(repeats + 1), "rounds", console=notes, disable=not notes.is_terminal):
        for name in names:
            result = run(name, turn)
            if turn:
                results[name].append(result)
    return results


def demo_in_turns(sides: dict[str, RunOptions], repeats: int) -> dict[str, list[AnyRecorder]]:
    """Runs of the demo's prompts by the options of each side, all of one model."""
    from scripts.checkpoints.models import load_by_name

    name = next(iter(sides.values())).model
    prompts = read_prompts(None, resolve_checkpoint(name))
    model, tokenizer = load_by_name(name)

    def run(side: str, turn: int) -> AnyRecorder:
        recorder = make_recorder(sides[side], model, tokenizer, prompts)
        with recorder.generator:
            serve(recorder)
        return recorder

    return in_turns(sides, repeats, run)
