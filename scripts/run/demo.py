"""Serve a batch of requests of very different lengths and watch them being prefilled and decoded."""

import json
import time
from collections.abc import Callable
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.options import with_options
from scripts.run.run_chart import write_record
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder, as_json, final_report, live_picture
from scripts.run.runs import make_recorder, package_of, prompts_of, serve

SECONDS_BETWEEN_PICTURES = 0.08

JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


@with_options(RunOptions)
def main(make_options: Callable[[], RunOptions], json_output: JsonOutput = False) -> None:
    """Serve a batch of requests, and watch them wait, prefill and decode, and what it costs.

    The reference serves, tiny_llm_ref, unless you give --mine: then your own package does.

    Example: pdm run demo --no-chunking, then again without the option; compare the longest gaps. Or
    pdm run demo --engine serving --rounds 2: the engine of week 3, which finds the second round's prompts
    in its blocks.
    """
    with usage_errors():
        options = make_options()
        prompts = prompts_of(options)  # what cannot be served is refused before anything is loaded
        with package_of(options) as package:
            run(options, prompts, json_output, package)


def run(options: RunOptions, prompts: list[str], json_output: bool, package: ModuleType) -> None:
    """Load, serve, report."""
    console = Console(highlight=False)
    notes = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    with notes.status(f"loading {options.model}"):
        from scripts.checkpoints.models import (
            load_by_name,  # seconds of imports, so not before there is a status to show
        )

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


if __name__ == "__main__":
    run_command(main, "demo")
