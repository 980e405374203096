"""A run that is watched: a picture that moves in a terminal, lines elsewhere, and a report at its end."""

import json
import time
from types import ModuleType

from rich.console import Console
from rich.live import Live

from scripts.checkpoints.models import load_by_name
from scripts.run.run_chart import write_record
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, as_json, final_report, live_picture
from scripts.run.runs import make_recorder, serve

SECONDS_BETWEEN_PICTURES = 0.08


def run(options: RunOptions, prompts: list[str], json_output: bool, package: ModuleType) -> None:
    """Load, serve, report."""
    console = Console(highlight=False)
    notes = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    with notes.status(f"loading {options.model}"):
        model, tokenizer = load_by_name(options.model, package)
    if not json_output:
        load_seconds = time.perf_counter() - start
        by = "your tiny_llm" if package.__name__ == "tiny_llm" else f"the reference, {package.__name__}"
        console.print(f"{options.model} loaded in {load_seconds:.1f} s by {by}")
    recorder = make_recorder(options, model, tokenizer, prompts, package)
    with recorder.generator:
        if json_output:
            serve(recorder)
            print(json.dumps(as_json(recorder, options.settings())))
        elif console.is_terminal:
            serve_live(recorder, console)
        else:
            serve_lines(recorder, console)
        write_record(recorder)


def serve_live(recorder: AnyRecorder, console: Console) -> None:
    """In a terminal: a picture that changes as the requests do, then the report."""
    with Live(console=console, auto_refresh=False) as live:
        last_drawn = 0.0
        while recorder.has_work:
            recorder.step()
            if recorder.seconds - last_drawn > SECONDS_BETWEEN_PICTURES:
                live.update(live_picture(recorder, console.width), refresh=True)
                last_drawn = recorder.seconds
        live.update(live_picture(recorder, console.width), refresh=True)
    console.print()
    console.print(final_report(recorder, console))


def serve_lines(recorder: AnyRecorder, console: Console) -> None:
    """Elsewhere: a line whenever a request changes its state, its text at the end, then the report."""
    shown: dict[int, str] = {}
    while recorder.has_work:
        recorder.step()
        for request, state in zip(recorder.requests, recorder.states, strict=True):
            if shown.get(request.prompt_idx, "waiting") != state:
                shown[request.prompt_idx] = state
                text = f": {' '.join(request.text().split())}" if request.is_done else ""
                console.print(
                    f"{recorder.seconds:7.2f} s  request {request.prompt_idx} {state}{text}",
                    soft_wrap=True,
                    markup=False,
                )
    console.print()
    console.print(final_report(recorder, console))
