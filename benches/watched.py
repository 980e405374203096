"""What surrounds each benchmark: a quiet machine for what is recorded, and files of what it measured."""

import importlib
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from benches.rounds import Rounds
from scripts.chart import draw
from scripts.errors import usage_errors
from scripts.hardware.quiet import RECORD, Watch, accepts_busy, judge, looked
from scripts.packages import MINE, NAME, sentences_of

Mine = Annotated[bool, typer.Option(MINE, help="Measure tiny_llm, your own, as far as it is written.")]


@dataclass(frozen=True)
class Results:
    """What a benchmark measured, and the rounds it took.

    --output writes NAME.json with the data, and NAME.svg with the chart: one of `scripts.chart`, which the
    book's record keeps too, or an SVG.
    """

    rounds: Rounds
    name: str = ""
    data: dict[str, Any] | None = None
    chart: dict[str, Any] | str = ""


def watched(command: Callable[..., Results | None], is_simulated: bool = False) -> Callable[..., None]:
    """A benchmark's command with --mine, which records on a quiet machine only, and elsewhere warns.

    `benches.__main__` has let the learner's package take the reference's place by then. What is left to do is
    to make one sentence of what is not written yet.

    It records where it is given --output, and for the book. Then other processes must leave the cores alone,
    before the first measurement and all along, and each median must come from at least 6 runs and be certain
    to 10%, unless the command itself says `--repeats 1`. What is simulated takes no notice of the machine.
    """

    parameters = signature(command).parameters
    knows = "mine" in parameters  # and measures the learner's package in another way

    @wraps(command)
    def run(**options: Any) -> None:
        mine = options["mine"] if knows else options.pop("mine", False)
        file, folder = os.environ.get(RECORD), options.get("output")
        records = bool(file or folder)
        with usage_errors(), sentences_of(importlib.import_module(NAME)) if mine else nullcontext():
            if is_simulated:
                command(**options)
                return
            if records:
                if not accepts_busy():
                    Rounds(options.get("repeats")).refuse_uncertain()
                judge(looked(), True)
            watch = Watch()
            results = command(**options)
            others = watch.others()
            judge(others, records)
            if results is None:
                return
            print(f"{results.rounds.summary()}; {others}")
            if records and not accepts_busy():
                results.rounds.refuse_uncertain()
            if file and isinstance(results.chart, dict):
                write_json(Path(file), results.chart)
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                data = {**(results.data or {}), "others": str(others), "rounds": results.rounds.summary()}
                write_json(folder / f"{results.name}.json", data)
                svg = results.chart if isinstance(results.chart, str) else draw(results.chart)
                (folder / f"{results.name}.svg").write_text(svg, encoding="utf-8")

    if not knows:
        option = Parameter("mine", Parameter.KEYWORD_ONLY, default=False, annotation=Mine)
        run.__signature__ = Signature([*parameters.values(), option])  # type: ignore[attr-defined]
        run.__annotations__ = {**command.__annotations__, "mine": Mine}
    return run


def write_json(file: Path, data: dict[str, Any]) -> None:
    """A file of numbers and names."""
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
