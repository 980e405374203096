"""What fences print and scripts of figures draw, kept in the repository: a fresh clone runs none of them."""

import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from scripts.book.cache import forget, is_remembered, remembered
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
    """The kept outputs of a book: a file for each page, with a part for its fences and one for each figure.

    An output is kept under a digest of its code alone, without the reference and the versions, so it holds on
    every machine. That the reference prints something else by now is what `Mode.COMPARE` finds.
    """

    folders: Folders
    mode: Mode = Mode.TAKE
    used: defaultdict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))

    def get(
        self,
        page: Path,
        part: str,
        code: list[str],
        reads: list[str],
        make: Callable[[], list[str]],
        varying: Collection[int] = (),
        check: Callable[[list[str]], None] = lambda outputs: None,
    ) -> tuple[list[str], dict[int, str]]:
        """The outputs of some code, and by its index a sentence for each that is not as it is kept.

        Args:
            page: whose file keeps them, by its path within src/.
            part: its name in that file.
            code: what the digest covers.
            reads: what else a change of which makes `Mode.COMPARE` run the code again.
            make: runs the code.
            varying: indexes of outputs that are alike whatever their numbers.
            check: raises ChapterError for outputs that are not to be kept.
        """
        file = self.folders.outputs / page.with_suffix(".json")
        self.used[file].add(part)
        digest = hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]
        kept = read_parts(file).get(part, {})
        old = ["\n".join(lines) for lines in kept["outputs"]] if kept.get("digest") == digest else None
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
            try:
                check(new)
            except ChapterError:
                forget(self.folders.cache, key)
                raise
            add_outputs(file, part, digest, new)
        shown = new if faults or old is None else old
        return shown, faults if self.mode is Mode.COMPARE else {}

    def unused(self) -> list[tuple[Path, str]]:
        """Parts of files whose fences or figure are gone, once all pages are rendered."""
        files = sorted(self.folders.outputs.rglob("*.json"))
        return [(file, part) for file in files for part in read_parts(file) if part not in self.used[file]]


def read_parts(file: Path) -> dict[str, dict[str, Any]]:
    """What is kept of a page: the digest and the outputs of each part."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def write_parts(file: Path, parts: dict[str, dict[str, Any]]) -> None:
    """Make these the parts of a file, which goes if there are none."""
    if not parts:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def add_outputs(file: Path, part: str, digest: str, outputs: list[str]) -> None:
    """Keep outputs, line by line, so that a difference can be read.

    Raises:
        ChapterError: a folder of this machine is in one of them.
    """
    if found := MACHINE_PATH.search("\n".join(outputs)):
        raise ChapterError(f"the output names a folder of this machine, {found[0]}")
    content = {"digest": digest, "outputs": [output.split("\n") for output in outputs]}
    write_parts(file, {**read_parts(file), part: content})


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
