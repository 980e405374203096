"""The messages that wrong solutions and unsolved tasks get, kept as files so that a change of one is seen."""

import difflib
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from scripts.course import ROOT, Course, load_course
from scripts.errors import usage_errors
from scripts.render import read_reference, render
from scripts.sandbox import Run, run_all
from scripts.wrong import load_bank

FOLDER = ROOT / "tests" / "messages"
CHOSEN = (
    "1.1.1 softmax-without-maximum",
    "1.1.1 softmax-always-last-axis",
    "1.1.1 linear-weight-not-transposed",
    "1.1.2 scale-by-d",
    "1.1.2 no-scale",
    "1.1.2 softmax-over-queries",
    "1.1.2 mask-after-softmax",
    "1.1.3 heads-interleaved",
    "1.1.3 mask-forgotten",
    "1.1.3 uneven-heads-accepted",
    "1.2.1 exponent-over-half",
    "1.2.1 wavelengths",
    "1.2.2 other-pairing",
    "1.2.2 sine-sign-of-halves",
    "1.2.2 always-position-zero",
    "1.2.2 positions-from-one",
    "1.2.3 offset-ignored",
    "1.2.3 one-offset-for-every-row",
    "1.3.1 queries-are-the-first-positions",
    "1.3.1 diagonal-hidden",
    "1.3.1 ones-and-zeros",
    "1.3.2 key-heads-tiled",
    "1.3.2 no-causal-mask",
    "1.3.2 causal-mask-off-by-one",
    "1.4.1 eps-outside-the-root",
    "1.4.1 layer-norm",
    "1.4.2 gate-and-up-swapped",
    "1.5.2 norms-forgotten",
    "1.5.2 no-causal-mask",
    "1.5.2 head-dim-from-the-width",
    "1.5.3 no-final-norm",
    "1.6.1 beginning-of-text-doubled",
    "1.6.1 first-position",
    "1.6.3 only-the-last-token-is-fed",
    "1.7.1 temperature-multiplied",
    "1.7.1 one-draw-for-all-rows",
    "1.7.2 top-k-keeps-the-smallest",
    "1.7.2 top-p-drops-the-token-that-crosses",
    "2.1.1 only-new-tokens-returned",
    "2.1.1 values-are-keys",
    "2.1.2 attends-to-new-tokens-only",
    "2.1.3 everything-fed-again",
    "2.2.1 high-nibble-first",
    "2.2.1 sign-extended",
    "2.2.2 groups-of-every-so-many-inputs",
    "2.2.2 steps-are-values",
    "2.2.3 weight-not-transposed",
    "2.2.3 biases-added-once",
    "2.2.4 scales-of-the-first-rows",
    "2.2.4 expanded-at-loading",
    "2.2.5 weights-read-for-each-request",
    "2.3.1 high-half-first",
    "2.3.2 sums-begin-anew",
    "2.3.3 never-expanded",
    "2.4.1 nothing-shrinks",
    "2.4.1 maximum-of-the-block",
    "2.4.1 infinity-minus-infinity",
    "2.4.1 not-divided",
    "2.4.2 nothing-skipped",
    "2.4.2 mask-without-the-cache",
    "2.4.4 key-heads-tiled",
    "2.4.4 scale-applied-twice",
    "2.5.1 outputs-do-not-shrink",
    "2.5.1 parts-added-up",
    "2.5.5 every-head-dimension-to-the-kernel",
    "2.6.1 busy-slot-overwritten",
    "2.6.1 slot-never-cleared",
    "2.6.2 one-offset-for-all-rows",
    "2.6.2 mask-made-before-the-append",
    "2.6.3 stop-string-left-in-the-text",
    "2.6.4 decode-fed-the-token-before",
    "2.7.1 mask-forgets-the-start",
    "2.7.2 prompt-head-again",
    "2.7.2 tokens-reversed-in-a-chunk",
    "2.7.2 every-chunk-at-offset-zero",
    "2.7.2 samples-in-mid-prefill",
    "2.7.3 whole-prompt-before-any-decode",
    "2.7.6 strict-priority",
    "2.7.7 prefill-first",
    "3.1.1 prompt-counted-when-asked",
    "3.1.2 samples-in-mid-prefill",
    "3.1.2 limit-ignored",
    "3.1.2 final-at-the-end-of-the-prompt",
    "3.1.3 prompts-starve-who-runs-behind",
    "3.1.3 whole-threshold-or-nothing",
    "3.1.3 partial-prefills-uncapped",
    "3.1.3 partial-prefills-under-way-forgotten",
    "3.1.3 over-the-limit-on-sequences",
    "3.1.4 every-chunk-at-offset-zero",
    "3.1.4 logits-at-every-chunk",
    "3.1.6 tokens-at-the-start-of-the-step",
    "3.1.7 decodes-are-free",
    "3.2.1 positions-are-slots",
    "3.2.2 promises-of-others-ignored",
    "3.2.3 only-the-prompt",
    "3.2.4 arrays-made-anew",
    "3.2.5 only-the-new-tokens",
    "3.3.1 positions-through-all-entries",
    "3.3.1 slots-of-the-first-table",
    "3.3.2 queries-of-the-first",
    "3.3.3 padding-with-slot-zero",
    "3.3.4 stored-afterwards",
    "3.3.4 evaluated-where-somebody-samples",
    "3.3.5 key-stride-of-one-head",
    "3.3.5 never-along-the-keys",
    "3.4.1 parent-not-compared",
    "3.4.5 registered-at-allocation",
    "3.4.6 last-token-counted",
    "3.5.1 first-gives-way",
    "3.5.2 no-aging",
    "3.5.4 token-counted-twice",
    "3.5.6 whole-step-dropped",
)
"""Wrong solutions whose messages are kept, by their ids in the bank."""

DECIMAL = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")
VARYING = {
    r"(\.(?:py|cpp|metal|cu)):\d+$": r"\1:LINE",
    r"0x[0-9a-f]+": "0xADDRESS",
    r"\d+ bytes": "SOME bytes",
}
"""What differs from machine to machine or with every edit, and what stands for it."""


def runs(course: Course) -> Iterator[Run]:
    """The chosen wrong solutions, and the first task of each day when nothing is solved."""
    bank = {solution.id: solution for solution in load_bank(course.days)}
    missing = [name for name in CHOSEN if name not in bank]
    if missing:
        raise ValueError(f"not in the bank of wrong solutions: {', '.join(missing)}")
    reference = read_reference()
    for name in CHOSEN:
        solution = bank[name]
        yield replace(solution.run(reference), pytest_options=["--task", str(solution.task), "-x"])
    starter = render((), course)
    for day in course.days:
        options = ["--task", "1", "-x"]
        yield Run(f"{day.tasks[0].id} starter", starter, [str(day.test_file)], options)


def current_messages() -> dict[str, str]:
    """The message of the first test that fails, by the name of its file."""
    return {
        f"{outcome.name.replace(' ', '-')}.txt": normalize(
            next(iter(outcome.failed.values()), "no test failed")
        )
        for outcome in run_all(runs(load_course()))
    }


def normalize(message: str) -> str:
    """A message without what varies."""
    for pattern, name in VARYING.items():
        message = re.sub(pattern, name, message, flags=re.MULTILINE)
    return f"{message.rstrip()}\n"


def stored_messages(folder: Path = FOLDER) -> dict[str, str]:
    """The messages as kept, by the name of their file."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}


def changes(stored: dict[str, str], current: dict[str, str]) -> list[str]:
    """The lines of a diff, file by file."""
    return [
        line
        for name in sorted({*stored, *current})
        if not are_alike(stored.get(name, ""), current.get(name, ""))
        for line in difflib.unified_diff(
            stored.get(name, "").splitlines(),
            current.get(name, "").splitlines(),
            f"{name} as kept",
            f"{name} now",
            lineterm="",
        )
    ]


def are_alike(kept: str, now: str) -> bool:
    """Whether two messages differ in nothing but the last digits of decimals, which depend on the BLAS."""
    pairs = zip(DECIMAL.findall(kept), DECIMAL.findall(now), strict=False)
    return DECIMAL.sub("DECIMAL", kept) == DECIMAL.sub("DECIMAL", now) and all(
        math.isclose(float(left), float(right), rel_tol=0.01) for left, right in pairs
    )


def rewrite(current: dict[str, str], folder: Path = FOLDER) -> None:
    """Make the files those of these messages."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        if path.name not in current:
            path.unlink()
    for name, message in current.items():
        (folder / name).write_text(message, encoding="utf-8")


Update = Annotated[bool, typer.Option("--update", help="Keep the messages as they are now.")]


def main(update: Update = False) -> None:
    """Compare the messages of wrong solutions with those kept in tests/messages.

    Example: pdm run author messages --update
    """
    start = time.perf_counter()
    with usage_errors():
        current = current_messages()
    difference = changes(stored_messages(), current)
    print("\n".join(difference), end="\n" if difference else "")
    if update:
        rewrite(current)
    verb = "rewritten" if update else "compared"
    print(f"{len(current)} messages {verb} in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    sys.exit(1 if difference and not update else 0)


if __name__ == "__main__":
    typer.run(main)
