"""What programs printed, kept by the content of what they read."""

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from scripts.book.symbols import reference


@cache
def environment() -> str:
    """A hash of what any fence may depend on: the reference, MLX and Python."""
    text = json.dumps({str(path): source for path, source in reference().items()}, sort_keys=True)
    versions = f"{sys.version_info[:2]} {importlib.metadata.version('mlx')}"
    return hashlib.sha256((text + versions).encode()).hexdigest()


def cache_file(folder: Path, key: object) -> Path:
    """Where the value of a key is kept, in this environment."""
    digest = hashlib.sha256(json.dumps([environment(), key]).encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


def is_remembered(folder: Path, key: object) -> bool:
    """Whether `remembered` would not have to make the value."""
    return cache_file(folder, key).is_file()


def forget(folder: Path, key: object) -> None:
    """Let `remembered` make the value of a key anew."""
    cache_file(folder, key).unlink(missing_ok=True)


def remembered(folder: Path, key: object, make: Callable[[], Any]) -> Any:
    """What `make` returned for this key, in this environment, the last time; what raises is not kept."""
    file = cache_file(folder, key)
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    value = make()
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")
    return value
