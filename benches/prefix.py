"""Conversations served with prefix caching and without: what is computed, and the time to the first token.

pdm run bench prefix --users 3 --turns 4
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from benches.rounds import Repeats, Rounds
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from tiny_llm import (
    BlockManager,
    Engine,
    PrefixCachingBlockManager,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    SchedulerOutput,
    percentile,
)
from tiny_llm.generation.generate import Tokenizer

BLOCK_SIZE = 16
SIDES = {"without": BlockManager, "with": PrefixCachingBlockManager}
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Users = Annotated[int, typer.Option(min=1, help="Conversations at the same time.")]
Turns = Annotated[int, typer.Option(min=1, help="Questions of each.")]
System = Annotated[int, typer.Option(min=0, help="Tokens that all prompts begin with.")]
Question = Annotated[int, typer.Option(min=1, help="Tokens of a question.")]
Answer = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Budget = Annotated[int, typer.Option(min=1, help="Tokens of a step.")]
Side = Annotated[Literal["without", "with"] | None, typer.Option(help="Only this side, turn by turn.")]


@dataclass(frozen=True)
class Load:
    """What users ask: each sends the next question when the answer to the one before is there.

    A prompt is all that was said, of a beginning that everybody has in common. Where nothing is `shared` it
    is as many other tokens, new in every turn.
    """

    num_users: int
    num_turns: int
    system: int
    question: int
    answer: int
    shared: bool = True

    @property
    def max_seq_len(self) -> int:
        """Tokens of the longest request."""
        return self.system + self.num_turns * (self.question + self.answer)


@dataclass
class Run:
    """One run of a load: what is compared; times, lengths and answers by user and turn."""

    seconds: float = 0.0
    ttft: dict[tuple[int, int], float] = field(default_factory=dict)
    schedule: list[float] = field(default_factory=list)
    prompt_lengths: dict[tuple[int, int], int] = field(default_factory=dict)
    num_computed: int = 0
    answers: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(self.prompt_lengths.values())


def main(
    model: Model = SHIPPED_MODEL,
    users: Users = 4,
    turns: Turns = 4,
    system: System = 512,
    question: Question = 32,
    answer: Answer = 32,
    budget: Budget = 128,
    repeats: Repeats = None,
    side: Side = None,
) -> Results:
    """Serve conversations, and then as many prompts that share nothing, by both sides in turns.

    Both sides have the same engine, kernels and blocks; blocks are enough for everything that is said.

    Example: pdm run bench prefix --users 8 --turns 2
    """
    use_full_float32()
    with usage_errors():
        from scripts.checkpoints.models import load_by_name

        rounds = Rounds(repeats)
        talks = Load(users, turns, system, question, answer)
        loaded, tokenizer = load_by_name(model)
        console = Console(highlight=False)
        console.print(", ".join(map(str, machine().values())), soft_wrap=True)
        if side is not None:
            runs = measure(talks, (side,), rounds, loaded, tokenizer, budget)
            console.print(by_turn(runs))
            return Results(rounds)
        for name, load in {"Conversations": talks, "Nothing shared": replace(talks, shared=False)}.items():
            runs = measure(load, tuple(SIDES), rounds, loaded, tokenizer, budget)
            first = next(iter(runs.values()))[0]
            console.print()
            console.print(
                f"{name}: {users} users, {turns} turns, {first.num_prompt_tokens} prompt tokens",
                soft_wrap=True,
            )
            console.print(comparison(runs))
            if load.shared:
                console.print(by_turn(runs))
            same = all(run.answers == first.answers for side_runs in runs.values() for run in side_runs)
            console.print(f"answers are {'equal' if same else 'different'}")
    return Results(rounds)


def measure(
    load: Load, sides: tuple[str, ...], rounds: Rounds, model: Qwen3Model, tokenizer: Tokenizer, budget: int
) -> dict[str, list[Run]]:
    """Runs of each side, in turns; the first of each is left out as warm-up."""
    return rounds.in_turns(
        sides,
        lambda side, _: serve(load, side, model, tokenizer, max(budget, load.num_users)),
        lambda run: {"TTFT": median(run.ttft.values()), "run": run.seconds},
        "conversations" if load.shared else "nothing shared",
    )


def serve(load: Load, side: str, model: Qwen3Model, tokenizer: Tokenizer, budget: int) -> Run:
    """One run of a load."""
    num_blocks = load.num_users * load.num_turns * -(-load.max_seq_len // BLOCK_SIZE)
    config = SchedulerConfig(budget, load.num_users)
    run, talk = Run(), Talk(load, model.config.vocab_size)
    with Engine(model, tokenizer, config, load.max_seq_len, SIDES[side](num_blocks, BLOCK_SIZE)) as engine:
        schedule = engine.scheduler.schedule

        def timed_schedule() -> SchedulerOutput:
            start = time.perf_counter()
            output = schedule()
            run.schedule.append(time.perf_counter() - start)
            return output

        engine.scheduler.schedule = timed_schedule  # type: ignore[method-assign]
        asked: dict[int, tuple[int, int]] = {}
        sent: dict[int, float] = {}

        def ask(user: int, turn: int) -> None:
            prompt = talk.prompt(user, turn, run.answers)
            run.prompt_lengths[user, turn] = len(prompt)
            request = engine.add_request(prompt, SamplingParams(max_tokens=load.answer))
            asked[request], sent[request] = (user, turn), time.perf_counter()

        begin = time.perf_counter()
        for user in range(load.num_users):
            ask(user, 0)
        while engine.has_unfinished_requests:
            step = engine.step()
            now = time.perf_counter()
            run.num_computed += sum(each.num_tokens for each in step.scheduled.entries if each.is_prefill)
            for request in step.sampled:
                if request in sent:
                    run.ttft[asked[request]] = now - sent.pop(request)
            for result in step.finished:
                user, turn = asked[result.prompt_idx]
                run.answers[user, turn] = result.token_ids
                if turn + 1 < load.num_turns:
                    ask(user, turn + 1)
        run.seconds = time.perf_counter() - begin
    return run


@dataclass(frozen=True)
class Talk:
    """Questions of random tokens, the same in every run."""

    load: Load
    vocab_size: int

    def tokens(self, num_tokens: int, *place: int) -> list[int]:
        """Those of a place in the talk; the first few ids, which may be special, are left out."""
        rng = random.Random(repr(place))
        return [rng.randrange(16, self.vocab_size) for _ in range(num_tokens)]

    def prompt(self, user: int, turn: int, answers: dict[tuple[int, int], tuple[int, ...]]) -> list[int]:
        """What a user sends."""
        prompt = self.tokens(self.load.system)
        for each in range(turn):
            prompt += [*self.tokens(self.load.question, user, each), *answers[user, each]]
        prompt += self.tokens(self.load.question, user, turn)
        return prompt if self.load.shared else self.tokens(len(prompt), user, turn, -1)


FIGURES: dict[str, Callable[[Run], float]] = {
    "prompt tokens computed": lambda run: run.num_computed,
    "share not computed, %": lambda run: 100 * (1 - run.num_computed / run.num_prompt_tokens),
    "median TTFT, ms": lambda run: 1e3 * median(run.ttft.values()),
    "p99 TTFT, ms": lambda run: 1e3 * (percentile(run.ttft.values(), 99) or 0.0),
    "whole run, ms": lambda run: 1e3 * run.seconds,
    "scheduling a step, µs": lambda run: 1e6 * median(run.schedule),
}


def comparison(runs: dict[str, list[Run]]) -> Table:
    """A row for each figure: median, least and most of either side, and the ratio of the medians."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("", *runs, "ratio"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, figure in FIGURES.items():
        sides = [[figure(run) for run in of_side] for of_side in runs.values()]
        texts = [f"{median(each):.0f} ({min(each):.0f} to {max(each):.0f})" for each in sides]
        ratio = f"{median(sides[1]) / median(sides[0]):.2f}" if sides[1:] and median(sides[0]) else ""
        table.add_row(name, *texts, ratio)
    return table


def by_turn(runs: dict[str, list[Run]]) -> Table:
    """A row for each turn: tokens of a prompt, and the time to its first token."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("turn", "prompt tokens", *(f"TTFT {side}, ms" for side in runs)):
        table.add_column(heading, justify="right", no_wrap=True)
    some = next(iter(runs.values()))[0]
    for turn in sorted({turn for _, turn in some.ttft}):
        length = median(tokens for (_, each), tokens in some.prompt_lengths.items() if each == turn)
        times = [
            median(1e3 * ttft for run in side_runs for (_, each), ttft in run.ttft.items() if each == turn)
            for side_runs in runs.values()
        ]
        table.add_row(str(turn + 1), f"{length:.0f}", *(f"{each:.0f}" for each in times))
    return table
