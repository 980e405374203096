"""Records which files and functions a request goes through, for the page that shows its life."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from scripts.book.life import RECORD, Life, read_life
from scripts.course import ROOT
from scripts.errors import usage_errors

COMMAND = "pdm run author record-life"
FILE = ROOT / "book" / "records" / RECORD
SECONDS = 180  # the first run compiles kernels
SETTINGS = {"TINY_LLM_KERNELS": "own", "TINY_LLM_DEVICE": "cpu"}  # the same way on every machine

Out = Annotated[Path, typer.Option(help="The file that the record is written to.")]
Check = Annotated[bool, typer.Option("--check", help="Only compare; exit code 2 if the way has grown.")]


def main(out: Out = FILE, check: Check = False) -> None:
    """Serve the shipped model, send it chat requests, and record the functions that they enter.

    Example: pdm run author record-life
    """
    with usage_errors():
        life = trace_life()
        if not check:
            out.write_text(json.dumps(life, indent=1) + "\n", encoding="utf-8")
            print(f"wrote {out.name}")
        elif grown := growth(read_life(out), life):
            raise ValueError(grown)


def trace_life() -> Life:
    """Trace requests in a process of its own.

    Raises:
        ValueError: it failed, or took too long.
    """
    command = [sys.executable, "-m", "scripts.author.trace_life"]
    environment = {**os.environ, **SETTINGS}
    try:
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"the requests were not answered within {SECONDS} s") from None
    if result.returncode != 0:
        raise ValueError(f"the requests could not be traced: {result.stderr.strip()}")
    life: Life = json.loads(result.stdout)
    return life


def growth(recorded: Life, life: Life) -> str:
    """What a trace enters beyond the record, in a sentence; empty if it enters nothing else."""
    parts = []
    for name, way in life.items():
        known = {stop["file"]: stop["functions"] for stop in recorded[name]}
        for stop in way:
            added = [each for each in stop["functions"] if each not in known.get(stop["file"], ())]
            if added:
                parts.append(f"{stop['file']}: {', '.join(added)} (of the {name})")
    if not parts:
        return ""
    return f"the way grew by {'; '.join(parts)}. If that is meant, record it with `{COMMAND}`"


if __name__ == "__main__":
    typer.run(main)
