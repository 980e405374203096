"""Compare the reference's greedy answers to the demo's prompts with mlx-lm's own, token by token."""

import sys
from typing import Annotated

import mlx.core as mx
import typer

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from scripts.run.runs import read_prompts

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]


def main(model: Model = SHIPPED_MODEL, max_tokens: MaxTokens = 48) -> None:
    """Answer the demo's prompts in one batch, in chunks, and one by one with mlx-lm, both in float32.

    Example: pdm run author compare-mlx-lm --model smollm2
    """
    use_full_float32()
    with usage_errors():
        different = differing_prompts(model, max_tokens)
    sys.exit(1 if different else 0)


def differing_prompts(name: str, max_tokens: int, num_prompts: int | None = None) -> list[int]:
    """Indices of the demo's first prompts, or of all, whose answers differ; prints a line for each prompt."""
    from scripts.checkpoints.models import as_chat
    from tiny_llm import SamplingParams, batch_generate, load

    checkpoint = resolve_checkpoint(name)
    model, tokenizer = load(checkpoint, mx.float32)
    prompts = [as_chat(tokenizer, prompt) for prompt in read_prompts(None, checkpoint)[:num_prompts]]
    ours = batch_generate(
        model,
        tokenizer,
        prompts,
        max_seq_len=model.config.max_position_embeddings,
        batch_size=4,
        prefill_step=64,
        params=SamplingParams(max_tokens=max_tokens),
    )
    theirs = mlx_lm_answers(str(checkpoint), prompts, max_tokens)
    different = []
    for result, expected in zip(ours, theirs, strict=True):
        same = list(result.token_ids) == expected
        print(
            f"prompt {result.prompt_idx}: {len(expected)} tokens, {'equal' if same else 'different'}",
            flush=True,
        )
        if not same:
            different.append(result.prompt_idx)
    return different


def mlx_lm_answers(path: str, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """mlx-lm's greedy token ids for each prompt, without the end-of-text id."""
    from mlx_lm import load
    from mlx_lm.generate import generate_step

    model, tokenizer = load(path)
    model.set_dtype(mx.float32)
    answers = []
    for prompt in prompts:
        answer: list[int] = []
        for token, _ in generate_step(mx.array(prompt), model, max_tokens=max_tokens):
            if int(token) in tokenizer.eos_token_ids:
                break
            answer.append(int(token))
        answers.append(answer)
    return answers


if __name__ == "__main__":
    typer.run(main)
