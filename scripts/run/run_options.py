"""The options of the commands that serve a batch of requests and watch it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scripts.checkpoints.files import SHIPPED_MODEL

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Engine = Annotated[
    Literal["batch", "serving"], typer.Option(help="The batch of week 2, or the engine of week 3.")
]
PrefillStep = Annotated[int, typer.Option(min=1, help="Of the batch: most prompt tokens of a step.")]
Budget = Annotated[
    int, typer.Option(min=1, help="Of the engine: most tokens of a step, prompts and answers.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that decode together.")]
Blocks = Annotated[
    int, typer.Option(min=0, help="Of the engine: blocks of the pool; 0 for a cache for each request.")
]
BlockSize = Annotated[int, typer.Option(min=1, help="Of the engine: tokens of a block.")]
Overcommit = Annotated[
    bool, typer.Option("--overcommit", help="Of the engine: admit by what a request needs now; preempt.")
]
NoPrefixCaching = Annotated[
    bool, typer.Option("--no-prefix-caching", help="Of the engine: compute equal beginnings again.")
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each prompt is sent.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Prompts = Annotated[Path | None, typer.Option(help="A prompt a line, or a JSON list of strings.")]
NoChunking = Annotated[bool, typer.Option("--no-chunking", help="Prefill whole prompts, to see the stall.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
Seed = Annotated[int, typer.Option(help="Of request 0; the others count on from it.")]
Mine = Annotated[bool, typer.Option("--mine", help="Serve with tiny_llm, your own, not with the reference.")]


@dataclass(frozen=True)
class RunOptions:
    """What is served, by whom, and how its steps are made.

    Raises:
        ValueError: the engine's budget is smaller than the batch.
    """

    model: Model = SHIPPED_MODEL
    engine: Engine = "batch"
    prefill_step: PrefillStep = 64
    budget: Budget = 64
    batch_size: BatchSize = 4
    blocks: Blocks = 256
    block_size: BlockSize = 16
    overcommit: Overcommit = False
    no_prefix_caching: NoPrefixCaching = False
    max_tokens: MaxTokens = 48
    prompts: Prompts = None
    rounds: Rounds = 1
    no_chunking: NoChunking = False
    temperature: Temperature = 0.0
    seed: Seed = 0
    mine: Mine = False

    def __post_init__(self) -> None:
        if self.engine == "serving" and not self.no_chunking and self.budget < self.batch_size:
            raise ValueError(
                f"the budget is {self.budget} and the batch size {self.batch_size}: "
                "a step needs a token for each that runs"
            )

    @property
    def name(self) -> str:
        """How prompts are read, in two or three words."""
        if self.no_chunking:
            return "whole prompts"
        if self.engine == "serving":
            return f"{self.budget} tokens a step"
        return f"chunks of {self.prefill_step}"

    @property
    def variants(self) -> "tuple[RunOptions, ...]":
        """What to compare: whole prompts and chunks, or these options alone if one says how to serve."""
        plain = RunOptions(
            model=self.model,
            max_tokens=self.max_tokens,
            prompts=self.prompts,
            temperature=self.temperature,
            seed=self.seed,
            mine=self.mine,
        )
        return (replace(self, no_chunking=True), self) if self == plain else (self,)

    def settings(self) -> dict[str, Any]:
        """Those that shape the run, for its record; None computes prompts whole."""
        settings: dict[str, Any] = {"model": self.model, "engine": self.engine}
        if self.engine == "batch":
            settings["prefill_step"] = None if self.no_chunking else self.prefill_step
        else:
            settings["budget"] = None if self.no_chunking else self.budget
            settings["blocks"] = self.blocks
            if self.blocks:
                settings["block_size"] = self.block_size
                settings["overcommit"] = self.overcommit
                settings["prefix_caching"] = not self.no_prefix_caching
        settings["batch_size"] = self.batch_size
        settings["rounds"] = self.rounds
        return settings | {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
