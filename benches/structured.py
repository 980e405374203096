"""A decode step of eight requests of which none, half or all have a grammar.

pdm run bench structured --model smollm2
"""

import json
import time
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.load import take, token_stream
from benches.rounds import Repeats, Rounds
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm import (
    BlockManager,
    Engine,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    StructuredOutputsParams,
    with_drafts,
)
from tiny_llm.generation.generate import Tokenizer

BLOCK_SIZE = 16
PROMPT = 64  # tokens of each prompt
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 969},
        "office": {"enum": ["king", "prophet", "priest", "judge"]},
    },
    "required": ["name", "age", "office"],
    "additionalProperties": False,
}
PEOPLE = json.dumps({"type": "array", "items": PERSON, "minItems": 100})
"""A schema that no answer of the benchmark comes to the end of."""
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Batch = Annotated[int, typer.Option(min=2, help="Requests at once.")]
MaxTokens = Annotated[int, typer.Option(min=4, help="Tokens of an answer.")]


def main(
    model: Model = SHIPPED_MODEL, batch: Batch = 8, max_tokens: MaxTokens = 48, repeats: Repeats = None
) -> Results:
    """Let requests decode greedily, with and without a JSON schema, in turns.

    Example: pdm run bench structured --model smollm2 --repeats 6
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        rounds = Rounds(repeats)
        loaded, tokenizer = load_by_name(model)
        stream = token_stream(model, tokenizer)
        prompts = [take(stream, 53 * number, PROMPT) for number in range(batch)]
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        sides = {"none": 0, "half": batch // 2, "all": batch}
        steps = rounds.in_turns(
            sides,
            lambda side, _: step_ms(loaded, tokenizer, prompts, sides[side], max_tokens),
            lambda ms: {"ms per step": ms},
            f"batch of {batch}",
        )
        drafted = {
            side: num_steps(loaded, tokenizer, prompts, number, max_tokens) for side, number in sides.items()
        }
        table = Table(box=None, padding=(0, 1), header_style="bold")
        table.add_column("with a grammar", no_wrap=True)
        for heading in ("ms per step", "against none", "steps", "with forced tokens as drafts"):
            table.add_column(heading, justify="right")
        base = median(steps["none"])
        for side, found in steps.items():
            ms, number = median(found), drafted[side]
            table.add_row(side, f"{ms:.2f}", f"{ms / base - 1:+.1%}", str(max_tokens), str(number))
        console.print(f"\n{batch} requests, {max_tokens} tokens each:")
        console.print(table)
    return Results(rounds)


def params_of(number: int, constrained: int, max_tokens: int) -> SamplingParams:
    """Parameters of a request: the first ones have a grammar."""
    outputs = StructuredOutputsParams(json=PEOPLE, disable_any_whitespace=True)
    return SamplingParams(max_tokens=max_tokens, structured_outputs=outputs if number < constrained else None)


def blocks_for(prompts: list[tuple[int, ...]], max_tokens: int) -> BlockManager:
    """A pool with room for all requests."""
    return BlockManager(len(prompts) * -(-(PROMPT + max_tokens) // BLOCK_SIZE), BLOCK_SIZE)


def step_ms(
    model: Qwen3Model, tokenizer: Tokenizer, prompts: list[tuple[int, ...]], constrained: int, max_tokens: int
) -> float:
    """Median milliseconds of the steps in which all requests decode."""
    config = SchedulerConfig(max(512, PROMPT * len(prompts)), len(prompts))
    pool = blocks_for(prompts, max_tokens)
    with Engine(model, tokenizer, config, PROMPT + max_tokens, pool) as engine:
        for number, prompt in enumerate(prompts):
            engine.add_request(prompt, params_of(number, constrained, max_tokens))
        engine.step()
        seconds = []
        while len(engine.requests) == len(prompts):
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
    return 1e3 * median(seconds)


def num_steps(
    model: Qwen3Model, tokenizer: Tokenizer, prompts: list[tuple[int, ...]], constrained: int, max_tokens: int
) -> int:
    """Steps until all answers have ended, with drafts by lookup and forced tokens."""
    config = SchedulerConfig(max(512, PROMPT * len(prompts)), len(prompts))
    pool = blocks_for(prompts, max_tokens)
    most = PROMPT + max_tokens
    with Engine(model, tokenizer, config, most, pool, execution=with_drafts()) as engine:
        for number, prompt in enumerate(prompts):
            engine.add_request(prompt, params_of(number, constrained, max_tokens))
        steps = 0
        while engine.has_unfinished_requests:
            engine.step()
            steps += 1
    return steps
