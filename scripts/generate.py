"""Stream one completion of a prompt."""

import sys
from typing import Annotated

import typer

from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors

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
) -> None:
    """Stream one completion.

    Example: pdm run generate "In the beginning" --temperature 0.8 --seed 1
    """
    with usage_errors():
        checkpoint = resolve_checkpoint(model)
        text = sys.stdin.read() if prompt == "-" else prompt
        from scripts.models import as_chat, load_by_name  # seconds of imports, after the cheap checks
        from tiny_llm_ref import SamplingParams, simple_generate_with_kv_cache

        sampler = SamplingParams(temperature, top_p, top_k, min_p, seed).make_sampler()
        loaded, tokenizer = load_by_name(str(checkpoint))
        if chat and not text.strip():
            raise ValueError("the message is empty: write something to answer")
        simple_generate_with_kv_cache(
            loaded, tokenizer, as_chat(tokenizer, text) if chat else text, sampler, max_tokens, print_piece
        )
        print()


def print_piece(text: str) -> None:
    """Write a piece of text at once."""
    print(text, end="", flush=True)


if __name__ == "__main__":
    typer.run(main)
