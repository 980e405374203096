"""Repeats the tests in which the package asked for the default device, as on a machine where that is a GPU.

They are noted while all tests run on the CPU. From the project's root:

    PYTHONPATH=$PWD/tests/platforms/stand_in ASKED_FOR_DEVICE=asked.txt pdm run test --ref
    pdm run python -m tests.platforms.repeat_on_gpu asked.txt
"""

import os
import sys
from pathlib import Path

from scripts.learn.test import run_pytest, workers

STAND_IN = Path(__file__).resolve().parent / "stand_in"


def main(file: Path, *options: str) -> int:
    """The exit code of pytest."""
    tests = sorted({*file.read_text(encoding="utf-8").splitlines()})
    if not tests:
        print(f"error: {file} names no test: note them in a run of the whole suite", file=sys.stderr)
        return 2
    os.environ["PYTHONPATH"] = str(STAND_IN)
    return run_pytest(["--ref", *workers(), *options, *tests])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
