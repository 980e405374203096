"""How many greedy answers change when the same prompts run in a batch and in chunks."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.packages import import_package
from scripts.run.runs import read_prompts

if TYPE_CHECKING:
    from tiny_llm import Qwen3Model

BATCH_SIZES = (2, 5, 8, 20)
CHUNKS = (7, 32, 100)

Model = Annotated[str, typer.Option("--model", help="Checkpoint: a folder, or a name as for demo.")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Type to compute in.")]
Count = Annotated[int, typer.Option(min=1, help="How many prompts.")]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
Mine = Annotated[bool, typer.Option("--mine", help="Ask tiny_llm, your own.")]


def main(
    model: Model = SHIPPED_MODEL,
    dtype: Dtype = "bfloat16",
    count: Count = 60,
    tokens: Tokens = 40,
    mine: Mine = False,
) -> None:
    """Answer prompts one by one, then in batches of several sizes and chunks, and count what differs.

    Example: pdm run author invariance --dtype bfloat16
    """
    with usage_errors():
        package = import_package(mine)
        import mlx.core as mx

        path = resolve_checkpoint(model)
        loaded, tokenizer = package.load(path, getattr(mx, dtype))
        prompts = cut_prompts([tokenizer.encode(text) for text in read_prompts(None, path)], count)

        def answer(batch_size: int, chunk: int) -> list[tuple[int, ...]]:
            params = package.SamplingParams(max_tokens=tokens)
            results = package.batch_generate(loaded, tokenizer, prompts, 1024, batch_size, chunk, params)
            return [result.token_ids for result in results]

        alone = answer(1, 1024)
        print(f"{model} in {dtype}, {count} greedy answers of up to {tokens} tokens")
        for batch_size in BATCH_SIZES:
            changed = sum(a != b for a, b in zip(answer(batch_size, 1024), alone, strict=True))
            print(f"in a batch of {batch_size:2}: {changed:2} of {count} answers change")
        for chunk in CHUNKS:
            changed = sum(a != b for a, b in zip(answer(8, chunk), alone, strict=True))
            print(f"in a batch of  8, in chunks of {chunk:3}: {changed:2} of {count} answers change")
        share = share_of_other_bits(loaded, max(prompts, key=len))
        print(f"logits of a prompt token by token: {share:.1%} have other bits than those of the whole")


def cut_prompts(prompts: list[list[int]], count: int) -> list[list[int]]:
    """So many prompts: beginnings of different length of those there are."""
    return [
        tokens[: max(1, len(tokens) * (rest + 1) // (count // len(prompts) + 1))]
        for rest in range(count // len(prompts) + 1)
        for tokens in prompts
    ][-count:]


def share_of_other_bits(model: "Qwen3Model", tokens: list[int]) -> float:
    """Share of a prompt's logits that change when it comes token by token."""
    import mlx.core as mx
    import numpy as np

    cache = model.create_kv_cache()
    parts = [model(mx.array([[token]]), position, cache) for position, token in enumerate(tokens)]
    whole = model(mx.array([tokens]))
    numbers = [np.array(logits.astype(mx.float32)) for logits in (mx.concatenate(parts, axis=1), whole)]
    return float(np.mean(numbers[0] != numbers[1]))


if __name__ == "__main__":
    typer.run(main)
