"""Decoding without drafts, with lookup and with a draft model, for text that repeats and text that doesn't.

pdm run bench speculation --batch 1 --batch 8
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benches.load import EndlessTokenizer, take, token_stream
from benches.rounds import Repeats, Rounds, say
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import DRAFT_MODEL, SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm_ref import (
    BlockManager,
    DraftModel,
    Engine,
    EngineStep,
    LookupDrafter,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    SpeculativeEngine,
)
from tiny_llm_ref.generation.generate import Tokenizer
from tiny_llm_ref.serving.given.adaptive_drafter import AdaptiveDrafter, DraftCost, profiled
from tiny_llm_ref.serving.given.drafter import Drafter

BLOCK_SIZE = 16
PROMPT = 96  # tokens of the longest prompt
VERSES = (
    "O give thanks unto the LORD; for he is good",
    "O give thanks unto the God of gods",
    "O give thanks to the Lord of lords",
    "To him who alone doeth great wonders",
    "To him that by wisdom made the heavens",
    "To him that stretched out the earth above the waters",
    "To him that made great lights",
    "The sun to rule by day",
)
REFRAIN = ": for his mercy endureth for ever.\n"
NUM_VERSES = 4  # in a prompt, the last one without the refrain
SAMPLE = "And Jacob served seven years for Rachel; and they seemed unto him but a few days."
Prompt = tuple[int, ...]
MakeEngine = Callable[[BlockManager, SchedulerConfig], Engine]
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Draft = Annotated[str, typer.Option(help="The same for the draft model, which needs the same tokenizer.")]
Batch = Annotated[list[int], typer.Option(min=1, help="Requests at once; give it several times.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens of an answer.")]
Adaptive = Annotated[bool, typer.Option("--adaptive", help="As many drafts as pay (task 8), up to these.")]
NumDrafts = Annotated[int, typer.Option(min=1, help="Drafts of the model in a step; lookup gets 8.")]


@dataclass(frozen=True)
class Run:
    """One run of a side, from the moment when every request has its first token.

    `num_rows` counts final entries: how often some answer got tokens.
    """

    seconds: float
    num_tokens: int
    num_rows: int
    num_drafts: int
    num_accepted: int

    @property
    def rate(self) -> float:
        """Tokens per second, of all requests."""
        return self.num_tokens / self.seconds

    @property
    def per_step(self) -> float:
        """Tokens that an answer got in a step."""
        return self.num_tokens / self.num_rows

    @property
    def acceptance(self) -> float:
        """Share of the drafts that were accepted; 0 without any."""
        return self.num_accepted / max(1, self.num_drafts)


def main(
    model: Model = SHIPPED_MODEL,
    draft: Draft = DRAFT_MODEL,
    batch: Batch = [1, 4, 8, 16, 32],  # noqa: B006  typer copies it
    max_tokens: MaxTokens = 48,
    num_drafts: NumDrafts = 3,
    adaptive: Adaptive = False,
    repeats: Repeats = None,
) -> Results:
    """Let requests decode greedily, by all sides in turns, for each kind of text and each batch size.

    Text that repeats is a psalm with a refrain. The other prompts are pieces of the demo's.

    Example: pdm run bench speculation --batch 1 --batch 8 --repeats 6
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        rounds = Rounds(repeats)
        loaded, tokenizer = load_by_name(model)
        sides = make_sides(loaded, draft_of(draft, tokenizer), max_tokens, num_drafts, adaptive)
        stream = token_stream(model, tokenizer)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        texts = {
            "text that repeats": {size: verses(tokenizer, size) for size in batch},
            "other text": {size: pieces(stream, size) for size in batch},
        }
        for text, prompts in texts.items():
            runs = {size: measure(sides, prompts[size], max_tokens, rounds, text) for size in batch}
            console.print(f"\n{text}, tokens per second:")
            console.print(comparison(runs))
    return Results(rounds)


def measure(
    sides: Mapping[str, MakeEngine], prompts: list[Prompt], max_tokens: int, rounds: Rounds, text: str
) -> dict[str, list[Run]]:
    """Runs of each side with the same prompts, in turns."""
    return rounds.in_turns(
        sides,
        lambda side, _: serve(sides[side], prompts, max_tokens),
        lambda run: {"tokens per second": run.rate},
        f"{text}, batch of {len(prompts)}",
    )


def draft_of(name: str, tokenizer: Tokenizer) -> Qwen3Model | None:
    """The draft model; None, with a note, if nobody asked for it and it doesn't fit the model.

    Raises:
        ValueError: the checkpoint that was asked for has another tokenizer.
    """
    from scripts.checkpoints.models import load_by_name

    draft, own_tokenizer = load_by_name(name)
    if own_tokenizer.encode(SAMPLE) == tokenizer.encode(SAMPLE):
        return draft
    if name != DRAFT_MODEL:
        raise ValueError(f"{name} has another tokenizer than the model: choose a draft model with the same")
    say(f"without a draft model: {name} has another tokenizer; choose one by --draft")
    return None


def make_sides(
    model: Qwen3Model, draft: Qwen3Model | None, max_tokens: int, num_drafts: int, adaptive: bool
) -> dict[str, MakeEngine]:
    """What makes the engine of each side."""
    most = PROMPT + max_tokens

    def plain(blocks: BlockManager, config: SchedulerConfig) -> Engine:
        return Engine(model, EndlessTokenizer(), config, most, blocks)

    def speculative(make_drafter: Callable[[BlockManager], Drafter], cost: DraftCost | None) -> MakeEngine:
        def make(blocks: BlockManager, config: SchedulerConfig) -> Engine:
            drafter = make_drafter(blocks)
            drafter = drafter if cost is None else AdaptiveDrafter(drafter, cost)
            return SpeculativeEngine(model, EndlessTokenizer(), config, most, blocks, drafter=drafter)

        return make

    def cost_with(draft: Qwen3Model | None) -> DraftCost | None:
        return profiled(model, draft) if adaptive else None

    sides = {"no drafts": plain, "lookup": speculative(lambda blocks: LookupDrafter(), cost_with(None))}
    if draft is not None:
        sides["draft model"] = speculative(
            lambda blocks: DraftModel(draft, blocks, num_drafts), cost_with(draft)
        )
    return sides


def verses(tokenizer: Tokenizer, size: int) -> list[Prompt]:
    """Prompts with a refrain, each beginning with another verse."""
    texts = [
        REFRAIN.join(islice(cycle(VERSES), first, first + NUM_VERSES)) + REFRAIN[0] for first in range(size)
    ]
    return [tuple(tokenizer.encode(text))[-PROMPT:] for text in texts]


def pieces(stream: list[int], size: int) -> list[Prompt]:
    """Prompts out of a text, each from another place."""
    return [take(stream, 53 * number, PROMPT) for number in range(size)]


def serve(make_engine: MakeEngine, prompts: list[Prompt], max_tokens: int) -> Run:
    """Serve prompts together, and measure from the step after which all of them decode."""
    num_blocks = len(prompts) * -(-(PROMPT + max_tokens) // BLOCK_SIZE)
    config = SchedulerConfig(max(512, PROMPT * len(prompts)), len(prompts))
    with make_engine(BlockManager(num_blocks, BLOCK_SIZE), config) as engine:
        for prompt in prompts:
            engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        engine.step()
        steps: list[EngineStep] = []
        start = time.perf_counter()
        while engine.has_unfinished_requests:
            steps.append(engine.step())
        seconds = time.perf_counter() - start
    accepted = sum(len(tokens) for step in steps for tokens in step.accepted.values())
    return Run(
        seconds,
        num_tokens=accepted + sum(len(step.sampled) for step in steps),
        num_rows=sum(len(step.sampled) for step in steps),
        num_drafts=sum(len(entry.draft_ids) for step in steps for entry in step.scheduled.entries),
        num_accepted=accepted,
    )


def comparison(runs: Mapping[int, Mapping[str, list[Run]]]) -> Table:
    """A row for each batch size; for each side with drafts, what it gains and how often drafts are right."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("batch", justify="right", no_wrap=True)
    sides = list(next(iter(runs.values())))
    table.add_column(sides[0], justify="right", no_wrap=True)
    for side in sides[1:]:
        for heading in (side, "gain", "right", "a step"):
            table.add_column(heading, justify="right", no_wrap=True)
    for size, of_sides in runs.items():
        base = median(run.rate for run in of_sides[sides[0]])
        cells = [f"{base:.0f}"]
        for side in sides[1:]:
            rate, first = median(run.rate for run in of_sides[side]), of_sides[side][0]
            cells += [
                f"{rate:.0f}",
                f"{rate / base:.2f}x",
                f"{first.acceptance:.0%}",
                f"{first.per_step:.2f}",
            ]
        table.add_row(str(size), *cells)
    return table
