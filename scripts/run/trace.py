"""Records a run of the batch generator or the engine on a real model, for `book/viz/timeline.html`.

The trace is what `pdm run demo --json` prints, with one entry more; all times are seconds since the start:

    package   which package served: "tiny_llm_ref" or "tiny_llm"
    settings  the options of the run
    machine   processor, cores and the version of MLX
    totals    seconds, steps, prefill_chunks, prompt_tokens, output_tokens, longest_itl_s, ...
    requests  one each: request, prompt_tokens, output_tokens, ttft_s, longest_itl_s, finish_reason, text, ...
    events    one a call of the model: step, phase ("prefill" or "decode"), start_s, end_s; tokens, the
              number of tokens computed for each request by its index, and first, the number of the first
              of them; sampled, who got a token. Those of one step of the engine all last as long as the step

Of an engine with blocks also:

    pool_events  step, kind ("hit" or "preemption"), time_s, request, tokens: how many were found in blocks,
                 or must be computed again
    blocks       after each step: used, cached, free
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from scripts.command import run_command
from scripts.course import ROOT
from scripts.errors import usage_errors
from scripts.options import with_options
from scripts.run.run_options import RunOptions
from scripts.waiting import progress_of, show_progress

VIEWER = ROOT / "book" / "viz" / "timeline.html"
RUN_GOES_HERE = '<script src="run-timeline.js"></script>'

Out = Annotated[Path, typer.Option(help="The JSON file that is written.")]
Html = Annotated[Path | None, typer.Option(help="Write one page with the run in it instead, to be sent.")]


@with_options(RunOptions)
def main(make_options: Callable[[], RunOptions], out: Out = Path("trace.json"), html: Html = None) -> None:
    """Serve a batch of requests and record it: what each call of the model computed, for whom and when.

    The reference serves, tiny_llm_ref, unless you give --mine: then your own package does.

    Example: pdm run trace --mine --html run.html, then open run.html in a browser.
    """
    with usage_errors():
        options = make_options()
        from scripts.run.runs import package_of, prompts_of  # which loads the reference

        prompts = prompts_of(options)  # what cannot be served is refused before anything is loaded
        target = html or out
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise ValueError(f"cannot write {target}: give a file in a folder that exists")
        with package_of(options) as package:
            run = record(options, prompts, package)
        write(run, target, is_page=html is not None)


def record(options: RunOptions, prompts: list[str], package: ModuleType) -> dict[str, Any]:
    """Load, serve, and return the trace."""
    from scripts.checkpoints.models import load_by_name
    from scripts.run.run_report import as_json, totals_text
    from scripts.run.runs import make_recorder

    show_progress(f"loading {options.model}")
    model, tokenizer = load_by_name(options.model)
    recorder = make_recorder(options, model, tokenizer, prompts)
    with recorder.generator:
        while recorder.has_work:
            recorder.step()
            num_done = sum(request.is_done for request in recorder.requests)
            show_progress(progress_of("serving", num_done, len(recorder.requests)))
        print(totals_text(recorder))
        return {"package": package.__name__, **as_json(recorder, options.settings())}


def write(run: dict[str, Any], target: Path, is_page: bool) -> None:
    """The trace, or a page that holds it; ValueError if the file cannot be written."""
    text = page_with(run) if is_page else json.dumps(run, indent=1) + "\n"
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}") from None
    print(f"wrote {target}")
    if is_page:
        print("open it in a browser")
    else:
        print(f"open {VIEWER.relative_to(ROOT)} in a browser and drop {target.name} on it")


def page_with(run: dict[str, Any]) -> str:
    """The viewer as one file: its style, its scripts and a run inside."""
    data = json.dumps(run).replace("<", "\\u003c")  # no text of a model ends the script
    page = VIEWER.read_text(encoding="utf-8")
    page = page.replace(RUN_GOES_HERE, f"<script>var TinyRun = {data};</script>\n{RUN_GOES_HERE}")
    page = re.sub(r'<link rel="stylesheet" href="(\S+)">', lambda found: styled(found[1]), page)
    return re.sub(r'<script src="(\S+)"></script>', lambda found: scripted(found[1]), page)


def styled(name: str) -> str:
    """A style sheet beside the viewer, inline."""
    return f"<style>\n{source(name)}</style>"


def scripted(name: str) -> str:
    """A script beside the viewer, inline."""
    return f"<script>\n{source(name)}</script>"


def source(name: str) -> str:
    """A file beside the viewer."""
    return (VIEWER.parent / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    run_command(main, "trace")
