"""Stream one completion of a prompt."""

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from kernel_runtime.native import use_one_blas_thread
from scripts.checkpoints.files import SHIPPED_MODEL, SHIPPED_MODELS, resolve_checkpoint
from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.packages import import_package, sentences_of
from scripts.waiting import show_progress

Prompt = Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")]
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put the prompt as a user's message in the chat template.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability together.")]
TopK = Annotated[int | None, typer.Option(help="Keep this many of the likeliest tokens.")]
MinP = Annotated[float, typer.Option(help="Keep tokens this fraction as likely as the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="Repeat the same draws.")]
Mine = Annotated[bool, typer.Option("--mine", help="Generate with tiny_llm, your own.")]


def main(
    prompt: Prompt,
    model: Model = SHIPPED_MODEL,
    chat: Chat = False,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 0.0,
    top_k: TopK = None,
    min_p: MinP = 0.0,
    seed: Seed = None,
    mine: Mine = False,
) -> None:
    """Stream one completion.

    The reference generates it, tiny_llm_ref, unless you give --mine: then your own package does, from week 1
    day 5 task 4 on, with the best loop that you have written.

    Example: pdm run generate "In the beginning" --temperature 0.8 --seed 1
    """
    with usage_errors():
        checkpoint = resolve_checkpoint(model)
        if prompt == "-":
            show_progress("")  # where someone may be typing
        text = sys.stdin.read() if prompt == "-" else prompt
        show_progress(f"loading {model}")
        from scripts.run.writing import write  # seconds of imports, after the cheap checks

        if chat and not text.strip():
            raise ValueError("the message is empty: write something to answer")
        if mine and model in SHIPPED_MODELS:  # whose products are small
            use_one_blas_thread()
        package = import_package(mine)
        with sentences_of(package) if mine else nullcontext():
            sampling = (temperature, top_p, top_k, min_p, seed)
            by = write(package, checkpoint, text, chat, max_tokens, sampling)
        print()
        if mine:
            print(by, file=sys.stderr)


if __name__ == "__main__":
    run_command(main, "generate")
