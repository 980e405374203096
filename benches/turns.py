"""Runs of the demo's prompts by several options, in turns."""

from benches.rounds import Rounds
from scripts.checkpoints.files import resolve_checkpoint
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, totals
from scripts.run.runs import make_recorder, read_prompts, serve


def demo_in_turns(sides: dict[str, RunOptions], rounds: Rounds) -> dict[str, list[AnyRecorder]]:
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

    return rounds.in_turns(sides, run, lambda recorder: {"seconds": totals(recorder)["seconds"]})
