"""Repeats tests in which the package asked for the default device, as on a machine where that is a GPU.

They are noted while all tests run on the CPU. From the project's root:

    PYTHONPATH=$PWD/tests/platforms/stand_in ASKED_FOR_DEVICE=asked.txt pdm run test --ref
    pdm run python -m tests.platforms.repeat_on_gpu asked.txt

Of the tests that reach a place in the code, three are repeated, and all of them with --all. With --own, they
are repeated on this machine's own GPU; then the first command ran with TINY_LLM_DEVICE=cpu.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from scripts.learn.test import run_pytest, workers

STAND_IN = Path(__file__).resolve().parent / "stand_in"
TESTS_PER_PLACE = 3
OWN_OPTIONS = ("--all", "--own")


def main(file: Path, *options: str) -> int:
    """The exit code of pytest."""
    reached = places_by_test(file)
    if not reached:
        print(f"error: {file} names no test: note them in a run of the whole suite", file=sys.stderr)
        return 2
    tests = sorted(reached) if "--all" in options else cover(reached)
    print(f"{len(tests)} of {len(reached)} tests that would meet a GPU")
    if "--own" not in options:
        os.environ["PYTHONPATH"] = str(STAND_IN)
    return run_pytest(["--ref", *workers(), *(each for each in options if each not in OWN_OPTIONS), *tests])


def places_by_test(file: Path) -> Mapping[str, set[str]]:
    """The places that each test reached."""
    reached = defaultdict[str, set[str]](set)
    for line in file.read_text(encoding="utf-8").splitlines():
        place, _, test = line.partition("\t")
        reached[test].add(place)
    return reached


def cover(reached: Mapping[str, set[str]], times: int = TESTS_PER_PLACE) -> list[str]:
    """Tests that reach every place so many times, or as often as any test does.

    Those that reach few places come first: they are small and quick, and say best what is wrong.
    """
    num_reached, chosen = Counter[str](), []
    for test in sorted(reached, key=lambda test: (len(reached[test]), test)):
        if any(num_reached[place] < times for place in reached[test]):
            chosen.append(test)
            num_reached.update(reached[test])
    return chosen


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
