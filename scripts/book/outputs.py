"""What fences print and scripts of figures draw, kept in the repository: a fresh clone runs none of them."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path

from scripts.book.cache import is_remembered, remembered
from scripts.book.folders import Folders
from scripts.book.problems import ChapterError
from scripts.book.records import MACHINE_PATH

NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
TOLERANCE = Decimal("1e-3")  # relative: processors differ in the last digits of a sum
ADVICE = "run `pdm run book record --outputs`"


class Mode(Enum):
    """What is done about code with a kept output: take that, run the code and compare, or keep it anew."""

    TAKE = "take"
    COMPARE = "compare"
    KEEP = "keep"


@dataclass
class Outputs:
    """The kept outputs of a book: a file for the fences of each page and one for each figure.

    An output is kept under a digest of its code alone, without the reference and the versions, so it holds on
    every machine. That the reference prints something else by now is what `Mode.COMPARE` finds.
    """

    folders: Folders
    mode: Mode = Mode.TAKE
    used: set[Path] = field(default_factory=set)

    def get(
        self,
        name: str,
        code: list[str],
        reads: list[str],
        make: Callable[[], list[str]],
        varying: Collection[int] = (),
    ) -> tuple[list[str], dict[int, str]]:
        """The outputs of some code, and by its index a sentence for each that is not as it is kept.

        Args:
            name: of the file that keeps them, without its suffix.
            code: what the digest covers.
            reads: what else a change of which makes `Mode.COMPARE` run the code again.
            make: runs the code.
            varying: indexes of outputs that are alike whatever their numbers.
        """
        file = self.folders.outputs / f"{name}.json"
        self.used.add(file)
        digest = hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]
        old = read_outputs(file, digest)
        key = [*code, *reads]
        knows_better = self.mode is Mode.COMPARE or (
            self.mode is Mode.KEEP and is_remembered(self.folders.cache, key)
        )
        if old is not None and not knows_better:
            return old, {}
        new: list[str] = remembered(self.folders.cache, key, make)
        faults = (
            {0: f"no output of this is kept: {ADVICE}"} if old is None else differences(old, new, varying)
        )
        if self.mode is Mode.KEEP and faults:
            write_outputs(file, digest, new)
        return new, faults if self.mode is Mode.COMPARE else {}

    def unused(self) -> list[Path]:
        """Files of pages and figures that are gone, once all pages are rendered."""
        return sorted({*self.folders.outputs.rglob("*.json")} - self.used)


def read_outputs(file: Path, digest: str) -> list[str] | None:
    """What is kept; nothing if it is of other code."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return ["\n".join(lines) for lines in kept["outputs"]] if kept.get("digest") == digest else None


def write_outputs(file: Path, digest: str, outputs: list[str]) -> None:
    """Keep outputs, line by line, so that a difference can be read.

    Raises:
        ChapterError: a folder of this machine is in one of them.
    """
    if found := MACHINE_PATH.search("\n".join(outputs)):
        raise ChapterError(f"the output names a folder of this machine, {found[0]}")
    content = {"digest": digest, "outputs": [output.split("\n") for output in outputs]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(old: list[str], new: list[str], varying: Collection[int]) -> dict[int, str]:
    """A sentence for each output that is not what was kept, by its index."""
    found = {}
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        pairs = [*itertools.zip_longest(b.split("\n"), a.split("\n"), fillvalue="")]
        if i in varying:
            pairs = [(without_numbers(first), without_numbers(second)) for first, second in pairs]
        line = next((first for first, second in pairs if not is_alike(first, second)), None)
        if line is not None:
            found[i] = f"this prints {line[:80]!r} now: {ADVICE}"
    return found


def without_numbers(text: str) -> str:
    """A text whose numbers, and the spaces that right-justify them, are all alike."""
    return re.sub(r"[ \d.,]*\d[\d.,]*", " 0", text)


def is_alike(a: str, b: str) -> bool:
    """Whether two texts differ in no more than the last digits of their decimals."""
    parts, others = NUMBER.split(a), NUMBER.split(b)
    return parts[::2] == others[::2] and all(map(is_close, parts[1::2], others[1::2]))


def is_close(a: str, b: str) -> bool:
    """Whether two numbers are equal, or decimals that rounding or the order of a sum sets apart."""
    first, second = Decimal(a), Decimal(b)
    unit = min(int(number.as_tuple().exponent) for number in (first, second))
    bound = max(TOLERANCE * max(abs(first), abs(second)), Decimal(10) ** unit)
    return first == second or (unit < 0 and abs(first - second) <= bound)
