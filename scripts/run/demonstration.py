"""Runs that are watched: served and recorded, then shown slowly in a terminal, as a table elsewhere."""

import json
from collections.abc import Callable

from rich.console import Console
from rich.status import Status

from scripts.checkpoints.models import load_by_name
from scripts.run.replay import Replay, play, slowdown_of
from scripts.run.run_chart import write_record
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, Runs, as_json, final_report, seconds_of
from scripts.run.runs import make_recorder, package_of, prompts_of


def run(options: RunOptions, json_output: bool, real_time: bool, status: Status) -> None:
    """Load, serve, and show what was recorded.

    Args:
        status: shown until then.

    Raises:
        ValueError: what a learner's package raises, too, in a sentence.
    """
    prompts = prompts_of(options)  # what cannot be served is refused before anything is loaded
    with package_of(options) as package:
        model, tokenizer = load_by_name(options.model)
        runs: Runs = {}
        for variant in (options,) if json_output else options.variants:
            recorder = make_recorder(variant, model, tokenizer, prompts)
            with recorder.generator:
                serve(recorder, variant.name, status)
            runs[variant.name] = recorder
        status.stop()
        recorder = runs[options.name]
        write_record(recorder)
        if json_output:
            print(json.dumps(as_json(recorder, options.settings())))
            return
        by = "your tiny_llm" if package.__name__ == "tiny_llm" else f"the reference, {package.__name__}"
        title = f"{len(prompts)} request{'s' * (len(prompts) > 1)} to {options.model}, served by {by}"
        show(title, runs, tokenizer.decode, real_time)


def serve(recorder: AnyRecorder, name: str, status: Status) -> None:
    """Step until nothing is left, and say how far it is."""
    num_left = len(recorder.requests)
    status.update(f"{name}: {num_left} requests left")
    while recorder.has_work:
        if results := recorder.step():
            num_left -= len(results)
            status.update(f"{name}: {num_left} requests left")


def show(title: str, runs: Runs, decode: Callable[[list[int]], str], real_time: bool) -> None:
    """In a terminal, the runs again and their figures; elsewhere, the figures and the timelines."""
    console = Console(highlight=False)
    seconds = max(map(seconds_of, runs.values()))
    if console.is_interactive:
        play(Replay(title, runs, decode, 1.0 if real_time else slowdown_of(seconds)), console)
        console.print()
    else:
        console.print(title, soft_wrap=True, markup=False)
    console.print(final_report(runs, console, has_timelines=not console.is_interactive))
