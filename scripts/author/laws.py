"""Try every law of the suite on examples that it has not seen, round after round."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import pytest
import typer

from scripts.course import ROOT
from scripts.errors import INTERRUPTED_EXIT_CODE, usage_errors
from scripts.learn.test import workers
from tests.support.laws import FAILED_ONCE, failed_once

Minutes = Annotated[float, typer.Option(min=0, help="Start no further round after so many minutes.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Try one round, with the examples of this seed.")]
Words = Annotated[str, typer.Option("-k", metavar="WORDS", help="Only laws with these words, as for pytest.")]


class Examples:
    """A pytest plugin that counts the examples of each law, and notes those that it failed on."""

    def __init__(self) -> None:
        self.num_tried: Counter[str] = Counter()
        self.failing: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Read what `tests/conftest.py` says of a law."""
        properties = dict(report.user_properties)
        if report.when == "call" and "examples" in properties:
            self.num_tried[report.nodeid.partition("[")[0]] += int(str(properties["examples"]))
            if report.failed:
                self.failing[report.nodeid] = list(properties["failing"])  # type: ignore[call-overload]


def main(minutes: Minutes = 10, first_seed: Seed = None, words: Words = "") -> None:
    """Draw fresh examples for every law: schedules, streams, samplers, schemas, ranks.

    A law is a test that hypothesis draws examples for. The suite tries each law on the same few examples, run
    after run; a round of this command tries as many that are new. An example that fails is kept in
    tests/support/failed_once.json. The suite tries it in every run from then on: commit that file too.

    Example: pdm run author laws --minutes 60
    """
    found, rounds, start = Examples(), 0, time.monotonic()
    seed = SystemRandom().randrange(2**32) if first_seed is None else first_seed
    while rounds == 0 or (first_seed is None and time.monotonic() - start < 60 * minutes):
        exit_code = run_round(seed + rounds, words, found)
        if exit_code == pytest.ExitCode.NO_TESTS_COLLECTED:
            with usage_errors():
                raise ValueError(f"no law has the words {words!r}: leave -k out to try all of them")
        if exit_code == INTERRUPTED_EXIT_CODE:
            sys.exit(exit_code)
        if exit_code != 0:
            keep(found.failing)
            print(f"repeat it: pdm run author laws --seed {seed + rounds}" + f" -k '{words}'" * bool(words))
            sys.exit(exit_code)
        rounds += 1
    print("\n".join(f"{count:7} {law}" for law, count in found.num_tried.most_common()))
    print(f"{found.num_tried.total()} examples, rounds: {rounds}, first seed: {seed}; every law held")


def run_round(seed: int, words: str, found: Examples) -> int:
    """The exit code of pytest."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = [str(ROOT / "tests"), "--ref", "--laws", str(seed), "-p", "hypothesispytest", *workers()]
    return int(pytest.main([*arguments, *(["-k", words] if words else [])], plugins=[found]))


def keep(failing: Mapping[str, list[str]], file: Path = FAILED_ONCE) -> None:
    """Add examples to those that the suite always tries."""
    kept = failed_once(file)
    for law, examples in failing.items():
        kept[law] = sorted({*kept.get(law, ()), *examples})
        print(f"{len(examples)} examples kept of {law}")
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
