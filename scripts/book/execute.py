"""The Python fences of a page: run by the reference, in the house's format."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.book import run_fences
from scripts.book.assertions import Assertion
from scripts.book.outputs import Outputs
from scripts.book.problems import ChapterError
from scripts.course import ROOT

TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Code:
    """Python to run; `line` is that of its first line in the page, `varies` if its numbers are measured.

    Its output is kept only if the assertions are true of it.
    """

    line: int
    code: str
    varies: bool = False
    assertions: list[Assertion] = field(default_factory=list)


def execute(fences: list[Code], page: Path, outputs: Outputs) -> tuple[list[str], list[tuple[int, str]]]:
    """What each fence of a page prints, run one after the other in one process, and what is wrong with that.

    Raises:
        ChapterError: one of them fails, with its line in the page.
    """
    if not fences:
        return [], []
    reads = ["fences", Path(run_fences.__file__).read_text(encoding="utf-8")]
    varying = {i for i, fence in enumerate(fences) if fence.varies}
    code = [
        text for fence in fences for text in (fence.code, *(each.expression for each in fence.assertions))
    ]
    printed, faults = outputs.get(
        page, "fences", code, reads, lambda: run_all(fences), varying, lambda new: check_all(fences, new)
    )
    return printed, [(fences[i].line, text) for i, text in faults.items()]


def run_all(fences: list[Code]) -> list[str]:
    """The same, without a look at what is kept."""
    answers: list[dict[str, Any]] = json.loads(
        run_python(
            ["-m", "scripts.book.run_fences"],
            json.dumps([{"code": fence.code, "line": fence.line} for fence in fences]),
            fences[0].line,
        )
    )
    if "error" in answers[-1]:
        raise ChapterError(f"this code fails: {answers[-1]['error']}", answers[-1]["line"])
    return [answer["output"] for answer in answers]


def check_all(fences: list[Code], printed: list[str]) -> None:
    """Raise ChapterError, with its line in the page, for an assertion that an output breaks."""
    for fence, output in zip(fences, printed, strict=True):
        for assertion in fence.assertions:
            try:
                assertion.check(output)
            except ChapterError as error:
                raise ChapterError(f"{error}; it printed {output!r}", assertion.line) from None


def run_python(arguments: list[str], text: str, line: int) -> str:
    """What a Python process prints; ChapterError with its last line if it fails."""
    try:
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                "COLUMNS": "100",
                "NO_COLOR": "1",
                "PYTHONUTF8": "1",
                "PYTHONPATH": str(ROOT),  # a figure's script imports the package
            },
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ChapterError(f"this runs for more than {TIMEOUT_SECONDS} seconds", line) from None
    if result.returncode != 0:
        last = (result.stderr.strip() or "no message").splitlines()[-1]
        if last.startswith("error: "):
            raise ChapterError(last.removeprefix("error: "), line)
        raise ChapterError(f"Python ends with exit code {result.returncode}: {last}", line)
    return result.stdout


def check_format(fences: list[Code]) -> list[tuple[int, str]]:
    """A line and a sentence for each fence that is not as ruff would write it."""
    if not fences:
        return []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"fence-{i}.py" for i in range(len(fences))]
        for file, fence in zip(files, fences, strict=True):
            file.write_text(fence.code + "\n", encoding="utf-8")
        options = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
        command = [sys.executable, "-m", "ruff", "format", *options, folder]
        result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        written = [file.read_text(encoding="utf-8").rstrip("\n").split("\n") for file in files]
    unread = {file for file in files if f"{file.name}:" in result.stderr}
    if result.returncode != 0 and not unread:
        raise ChapterError(f"ruff fails: {result.stderr.strip()}")
    faults = []
    for file, fence, lines in zip(files, fences, written, strict=True):
        if file in unread:
            faults.append((fence.line, f"this is not Python: {syntax_error(fence.code)}"))
        elif lines != fence.code.rstrip("\n").split("\n"):
            line = fence.line + first_difference(fence.code.split("\n"), lines)
            faults.append((line, "ruff would write this otherwise"))
    return faults


def syntax_error(code: str) -> str:
    """What Python says of code that ruff could not read."""
    try:
        compile(code, "page", "exec")
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno} of the fence"
    return "ruff cannot read it"


def first_difference(lines: list[str], others: list[str]) -> int:
    """Index of the first line in which two texts differ."""
    pairs = zip(lines, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(lines), len(others)))
