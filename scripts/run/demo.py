"""Serve a batch of requests of very different lengths, and watch them wait, read and write."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from scripts.checkpoints.files import resolve_checkpoint
from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.options import with_options
from scripts.run.run_options import RunOptions

JsonOutput = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object, for programs: of the run in chunks, or as chosen."),
]
RealTime = Annotated[bool, typer.Option("--real-time", help="Show it as fast as it was.")]


@with_options(RunOptions)
def main(
    make_options: Callable[[], RunOptions], json_output: JsonOutput = False, real_time: RealTime = False
) -> None:
    """Serve the same requests twice: above with each prompt read whole, below in chunks. See who has to wait.

    A terminal shows both runs again on one clock, slowed down so that it takes about ten seconds, then their
    figures as they were measured; a pipe gets the figures alone. An option that says how to serve, such as
    --no-chunking, --batch-size or --engine serving, shows that run alone.

    The reference serves, tiny_llm_ref, unless you give --mine: then your own package does.

    Example: pdm run demo, or pdm run demo --engine serving --rounds 2: the engine of week 3, which finds the
    second round's prompts in its blocks.
    """
    with usage_errors():
        options = make_options()
        resolve_checkpoint(options.model)  # fetches some, and shows how far it is
        with Console(stderr=True, highlight=False).status(f"loading {options.model}") as status:
            from scripts.run.demonstration import run  # which loads the reference

            run(options, json_output, real_time, status)


if __name__ == "__main__":
    run_command(main, "demo")
