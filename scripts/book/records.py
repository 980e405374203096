"""The commands that chapters show, and the output that was recorded of each."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.book.commands import arguments_of
from scripts.book.problems import ChapterError
from scripts.course import ROOT
from scripts.hardware.processor import num_cores, processor
from scripts.hardware.quiet import RECORD

TERMINAL_WIDTH = 100
TIMEOUT_SECONDS = 1800
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|tmp|Users|work|var|private|opt|usr)/[\w./-]+")


@dataclass(frozen=True)
class Record:
    """One command as it ran: its output, exit code, machine, versions and day."""

    command: str
    output: str
    exit_code: int
    machine: str
    versions: str
    date: str
    chart: dict[str, Any] | None = None  # what `scripts.chart` draws of it
    seconds: float | None = None

    @property
    def caption(self) -> str:
        """Where the output is from."""
        return f"{self.machine}; {self.versions}; {self.date}"


def record_file(records: Path, page: Path) -> Path:
    """The records of a page, by its path within src/."""
    return records / page.with_suffix(".json")


def load_records(file: Path) -> dict[str, Record]:
    """The records of a page by their commands; none without the file."""
    if not file.is_file():
        return {}
    return {entry["command"]: Record(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))}


def save_records(file: Path, records: list[Record]) -> None:
    """Write the records of a page, or remove the file if there are none."""
    if not records:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {key: value for key, value in asdict(record).items() if value is not None} for record in records
    ]
    text = json.dumps(entries, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def record(command: str) -> Record:
    """Run a command in the repository and note what it prints.

    Raises:
        ChapterError: it cannot be run, or its output names a folder of this machine.
    """
    words = shlex.split(command)
    settings = {word.split("=")[0]: word.partition("=")[2] for word in words if is_setting(word)}
    environment = {**os.environ, **settings, "COLUMNS": str(TERMINAL_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "measured.json"
        start = time.monotonic()
        result = run(command, {**environment, "PYTHONUTF8": "1", RECORD: str(measured)})
        seconds = round(time.monotonic() - start, 1)
        chart = json.loads(measured.read_text(encoding="utf-8")) if measured.is_file() else None
    output = without_machine(result.stdout)
    today = datetime.now(timezone.utc).date().isoformat()
    return Record(command, output, result.returncode, machine(), versions(), today, chart, seconds)


def run(command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command in the repository; ChapterError if it takes too long."""
    try:
        return subprocess.run(
            [sys.executable, *arguments_of(command)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ChapterError(f"`{command}` runs for more than {TIMEOUT_SECONDS} seconds") from None


def is_setting(word: str) -> bool:
    """Whether a word sets a variable for the command after it."""
    return re.match(r"[A-Z_][A-Z0-9_]*=", word) is not None


def without_machine(output: str) -> str:
    """The output with paths from the repository's folder, and no space at the ends of lines.

    Raises:
        ChapterError: another folder of this machine is in it.
    """
    for folder in sorted({str(ROOT), str(Path(sys.prefix).resolve().parent), str(ROOT.resolve())}):
        output = output.replace(f"{folder}/", "").replace(folder, ".")
    if found := MACHINE_PATH.search(output):
        raise ChapterError(f"the output names a folder of this machine, {found[0]}")
    return "\n".join(line.rstrip() for line in output.strip("\n").split("\n"))


def machine() -> str:
    """Processor and cores."""
    return f"{processor()}, {num_cores()} cores"


def versions() -> str:
    """System, Python and MLX."""
    return f"{platform.system()}, Python {platform.python_version()}, MLX {version('mlx')}"
