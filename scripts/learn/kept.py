"""What the learner's commands keep of this clone of the course: small JSON files, each replaced at once."""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.checkpoints.files import cache_dir
from scripts.course import ROOT


@dataclass(frozen=True)
class Kept:
    """Values by name, in a file that may be missing or damaged."""

    file: Path

    def read(self) -> dict[str, object]:
        """All of them; none where the file says nothing that makes sense."""
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def put(self, name: str, value: object) -> bool:
        """Write a value, and say whether that worked."""
        content = {**self.read(), name: value}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(content, indent=1) + "\n")
        except OSError:
            return False
        return True


def kept(folder: str) -> Kept:
    """A file of this clone of the course, so that another one starts afresh."""
    return Kept(cache_dir() / folder / f"{hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]}.json")


def write_atomically(file: Path, text: str) -> None:
    """Replace a file at once, so that a reader finds the old content or the new; OSError if it cannot."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
