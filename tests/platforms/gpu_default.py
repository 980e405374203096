"""Commands as on a machine whose default device is a GPU; the emulator computes in its place."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.course import ROOT

STAND_IN = Path(__file__).resolve().parent / "stand_in"
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(map(str, (STAND_IN, ROOT)))}


def run_on_gpu(*arguments: str, folder: Path = ROOT) -> str:
    """What a command prints on standard output.

    A line on standard error is a failure too: there the package says that it goes without a kernel.

    Args:
        arguments: a module of the project, and its options.
        folder: holds the package `tiny_llm` that the command finds.
    """
    result = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout
