"""Programs of Node.js, from a folder of their own that has what package-lock.json pins."""

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
NEEDS_NODE = "these clients run in Node.js: install Node.js 20 with npm"
SECONDS = 300


def install(folder: Path) -> None:
    """Copy the programs to a folder, and install there what they need."""
    assert shutil.which("node"), NEEDS_NODE
    assert shutil.which("npm"), NEEDS_NODE
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What a command prints in a folder."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
