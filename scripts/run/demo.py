"""Serve a batch of requests of very different lengths and watch them being prefilled and decoded."""

from collections.abc import Callable
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.options import with_options
from scripts.run.run_options import RunOptions

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
        from scripts.run.demonstration import run  # which loads the reference
        from scripts.run.runs import package_of, prompts_of

        prompts = prompts_of(options)  # what cannot be served is refused before anything is loaded
        with package_of(options) as package:
            run(options, prompts, json_output, package)


if __name__ == "__main__":
    run_command(main, "demo")
