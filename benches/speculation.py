"""Decoding without drafts, with lookup and with a draft model: answers that quote, repeat or do neither.

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

from benches.load import take, token_stream
from benches.rounds import Repeats, Rounds, say
from benches.speculation_prediction import Try, predicted_gain
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import DRAFT_MODEL, SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm import (
    BlockManager,
    DraftModel,
    Engine,
    EngineStep,
    LookupDrafter,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    with_drafts,
)
from tiny_llm.generation.generate import Tokenizer
from tiny_llm.speculation.adaptive_drafter import (
    FIRST_RATE,
    MOST_DRAFTS,
    AdaptiveDrafter,
)
from tiny_llm.speculation.draft_cost import DraftCost, profiled
from tiny_llm.speculation.draft_length import Acceptance
from tiny_llm.speculation.draft_runner import note_on_context
from tiny_llm.speculation.drafter import Drafter
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

BLOCK_SIZE = 16
PROMPT = 96  # tokens of a prompt
LONGEST = 160  # tokens of the longest prompt
OFFERING = (
    "His offering was one silver charger, the weight whereof was an hundred and thirty shekels, one silver "
    "bowl of seventy shekels, after the shekel of the sanctuary; both of them full of fine flour mingled "
    "with oil for a meat offering: One golden spoon of ten shekels, full of incense: One young bullock, one "
    "ram, one lamb of the first year, for a burnt offering: One kid of the goats for a sin offering: And for "
    "a sacrifice of peace offerings, two oxen, five rams, five he goats, five lambs of the first year: this "
    "was the offering of {}.\nHis offering was"
)
PRINCES = (
    "Nahshon the son of Amminadab",
    "Nethaneel the son of Zuar",
    "Eliab the son of Helon",
    "Elizur the son of Shedeur",
    "Shelumiel the son of Zurishaddai",
    "Eliasaph the son of Deuel",
    "Elishama the son of Ammihud",
    "Gamaliel the son of Pedahzur",
)
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
Predictions = dict[int, dict[str, float]]
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Draft = Annotated[str, typer.Option(help="The same for the draft model, which needs the same tokenizer.")]
Batch = Annotated[list[int], typer.Option(min=1, help="Requests at once; give it several times.")]
MaxTokens = Annotated[int, typer.Option(help="Tokens of an answer; at least two more than drafts of a step.")]
Adaptive = Annotated[bool, typer.Option("--adaptive", help="As many drafts as pay (task 8), up to these.")]
NumDrafts = Annotated[int, typer.Option(min=1, help="Drafts of the model in a step; lookup gets 8.")]


@dataclass(frozen=True)
class Side:
    """What makes an engine, and what its drafts cost, if it has the same number of them in every step."""

    make: MakeEngine
    cost: DraftCost | None = None


@dataclass(frozen=True)
class Run:
    """One run of a side, from the moment when every request has its first token until the first answer ends.

    `tries` has the numbers of drafts and of accepted drafts for each time when an answer got tokens.
    """

    seconds: float
    tries: tuple[Try, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(1 + accepted for _, accepted in self.tries)

    @property
    def rate(self) -> float:
        """Tokens per second, of all requests."""
        return self.num_tokens / self.seconds

    @property
    def per_step(self) -> float:
        """Tokens that an answer got in a step."""
        return self.num_tokens / len(self.tries)

    @property
    def acceptance(self) -> float:
        """Share of the drafts that were accepted; 0 without any."""
        return sum(accepted for _, accepted in self.tries) / max(1, sum(drafts for drafts, _ in self.tries))


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

    No side overlaps its steps: drafts of the next step need the tokens of this one.

    Time is measured while the batch is full: from the step with all first tokens until the first answer ends.

    Answers that quote continue a list whose next entry is the same as the one in the prompt. Answers that
    repeat have a refrain. The prompts of the others are pieces of the demo's.

    The forecast of a gain is simulated from what steps cost and what drafts do in the smallest batch.

    Example: pdm run bench speculation --batch 1 --batch 8 --repeats 6
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        check_length(max_tokens, num_drafts)
        rounds = Rounds(repeats)
        loaded, tokenizer = load_by_name(model)
        sides = make_sides(loaded, draft_of(draft, tokenizer), max_tokens, num_drafts, adaptive)
        stream = token_stream(model, tokenizer)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        texts = {
            "answers that quote": {size: offerings(tokenizer, size) for size in batch},
            "answers that repeat": {size: verses(tokenizer, size) for size in batch},
            "other answers": {size: pieces(stream, size) for size in batch},
        }
        for text, prompts in texts.items():
            runs = {size: measure(sides, prompts[size], max_tokens, rounds, text) for size in batch}
            console.print(f"\n{text}: tokens per second without drafts, and what drafts gain")
            console.print(comparison(runs, predictions(sides, runs, max_tokens)))
    return Results(rounds)


def check_length(max_tokens: int, num_drafts: int) -> None:
    """Raise ValueError if an answer could end in its first step, before anything is measured."""
    least = max(num_drafts, LookupDrafter().num_drafts) + 2
    if max_tokens < least:
        raise ValueError(
            f"an answer of {max_tokens} tokens may end in its first step: ask for {least} or more"
        )


def measure(
    sides: Mapping[str, Side], prompts: list[Prompt], max_tokens: int, rounds: Rounds, text: str
) -> dict[str, list[Run]]:
    """Runs of each side with the same prompts, in turns."""
    return rounds.in_turns(
        sides,
        lambda side, _: serve(sides[side].make, prompts, max_tokens),
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
) -> dict[str, Side]:
    """The engine without drafts, and those with drafts from each source."""
    most = LONGEST + max_tokens

    def plain(blocks: BlockManager, config: SchedulerConfig) -> Engine:
        return Engine(model, EndlessTokenizer(), config, most, blocks)

    def speculative(make_drafter: Callable[[BlockManager], Drafter], cost: DraftCost) -> Side:
        learned = Acceptance([FIRST_RATE] * MOST_DRAFTS)

        def make(blocks: BlockManager, config: SchedulerConfig) -> Engine:
            drafter = make_drafter(blocks)
            drafter = AdaptiveDrafter(drafter, cost, learned) if adaptive else drafter
            return Engine(model, EndlessTokenizer(), config, most, blocks, execution=with_drafts(drafter))

        return Side(make, None if adaptive else cost)

    sides = {
        "no drafts": Side(plain),
        "lookup": speculative(lambda blocks: LookupDrafter(), profiled(model)),
    }
    if draft is not None:
        note = note_on_context(draft, most)
        if note is not None:
            say(note)
        sides["draft model"] = speculative(
            lambda blocks: DraftModel(draft, blocks, num_drafts), profiled(model, draft)
        )
    return sides


def offerings(tokenizer: Tokenizer, size: int) -> list[Prompt]:
    """Prompts whose answers begin with the same words, each with another name."""
    return [tuple(tokenizer.encode(OFFERING.format(name))) for name in islice(cycle(PRINCES), size)]


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
    """Serve prompts together, and measure while all of them decode."""
    num_blocks = len(prompts) * -(-(LONGEST + max_tokens) // BLOCK_SIZE)
    config = SchedulerConfig(max(512, LONGEST * len(prompts)), len(prompts))
    with make_engine(BlockManager(num_blocks, BLOCK_SIZE), config) as engine:
        for prompt in prompts:
            engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        engine.step()
        steps: list[EngineStep] = []
        start = time.perf_counter()
        while not (steps and steps[-1].finished):
            steps.append(engine.step())
        seconds = time.perf_counter() - start
    tries = [
        (len(entry.draft_ids), len(step.accepted.get(entry.sequence.id, ())))
        for step in steps
        for entry in step.scheduled.final
    ]
    return Run(seconds, tuple(tries))


def predictions(
    sides: Mapping[str, Side], runs: Mapping[int, Mapping[str, list[Run]]], max_tokens: int
) -> Predictions:
    """The gain of each side with drafts, by batch size, from what its drafts do in the smallest batch."""
    first = runs[min(runs)]
    return {
        size: {
            name: predicted_gain(side.cost, first[name][0].tries, size, PROMPT, max_tokens)
            for name, side in sides.items()
            if side.cost is not None
        }
        for size in runs
    }


def comparison(runs: Mapping[int, Mapping[str, list[Run]]], predicted: Predictions) -> Table:
    """A row for each batch size; for each side with drafts, what it gains and how often drafts are right."""
    table = Table(box=None, padding=(0, 0, 0, 1), header_style="bold")
    sides = list(next(iter(runs.values())))
    headings = [heading for side in sides[1:] for heading in (side, "forecast", "right", "a step")]
    for heading in ("batch", sides[0], *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    for size, of_sides in runs.items():
        base = median(run.rate for run in of_sides[sides[0]])
        cells = [f"{base:.0f}"]
        for side in sides[1:]:
            rate, first = median(run.rate for run in of_sides[side]), of_sides[side][0]
            forecast = f"{predicted[size][side]:.2f}x" if side in predicted[size] else "-"
            cells += [f"{rate / base:.2f}x", forecast, f"{first.acceptance:.0%}", f"{first.per_step:.2f}"]
        table.add_row(str(size), *cells)
    return table
