"""Repeats the tests in which the package asked for the default device, as on a machine where that is a GPU.

Which they are was noted while all tests ran on the CPU: others cannot end otherwise. From the project's root:

    PYTHONPATH=$PWD/tests/platforms/stand_in ASKED_FOR_DEVICE=asked.txt pdm run test --ref
    python tests/platforms/repeat_on_gpu.py asked.txt
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent


def main(file: Path, *options: str) -> int:
    """The exit code of pytest."""
    tests = sorted({*file.read_text(encoding="utf-8").splitlines()})
    if not tests:
        print(f"error: {file} names no test: note them in a run of the whole suite", file=sys.stderr)
        return 2
    environment = {**os.environ, "PYTHONPATH": str(FOLDER / "stand_in")}
    command = [sys.executable, "-m", "pytest", "--ref", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
