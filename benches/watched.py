"""What surrounds each benchmark: a quiet machine for what is recorded, and files of what it measured."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from benches.rounds import Rounds
from scripts.errors import usage_errors
from scripts.hardware.quiet import RECORD, Watch, accepts_busy, judge, looked


@dataclass(frozen=True)
class Results:
    """What a benchmark measured, and the rounds it took.

    --output writes NAME.json with `data` and `details`, and NAME.svg with the chart; a record of the book has
    `data`.
    """

    rounds: Rounds
    name: str = ""
    data: dict[str, Any] | None = None
    chart: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def watched(command: Callable[..., Results | None]) -> Callable[..., None]:
    """A benchmark's command that records on a quiet machine only, and elsewhere warns.

    It records where it is given --output, and for the book. Then other processes must leave the cores alone,
    before the first measurement and all along, and the medians must be certain.
    """

    @wraps(command)
    def run(**options: Any) -> None:
        file, folder = os.environ.get(RECORD), options.get("output")
        records = bool(file or folder)
        with usage_errors():
            if records:
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
            data = {**(results.data or {}), "others": str(others), "rounds": results.rounds.summary()}
            if file:
                write_json(Path(file), data)
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / f"{results.name}.json", {**data, **results.details})
                (folder / f"{results.name}.svg").write_text(results.chart, encoding="utf-8")

    return run


def write_json(file: Path, data: dict[str, Any]) -> None:
    """A file of numbers and names."""
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
