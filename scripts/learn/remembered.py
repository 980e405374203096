"""What `progress` and `watch` remember: the tasks whose tests all passed, by the content that they depend on.

Each task has a few small files in the cache folder, named after a digest of that content. Files are replaced
atomically, and a damaged one counts as missing.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from scripts.checkpoints.files import cache_dir
from scripts.course import ROOT, Day, Task, load_course
from scripts.learn.dependencies import Dependencies, common_digest, digest_of
from scripts.learn.learner import import_error
from scripts.sources.files import Sources

FOLDER = "remembered"
FILES_PER_TASK = 8


class Memory:
    """The tasks that are remembered as passed for the package as it is now.

    Args:
        sources: of the package, by their path within it.
        is_fresh: recall nothing; what passes is still kept.
        root: the folder that holds the tests.
    """

    def __init__(self, sources: Sources, is_fresh: bool = False, root: Path = ROOT) -> None:
        self.sources, self.root, self.is_fresh = sources, root, is_fresh
        self.folder = cache_dir() / FOLDER
        self.common = common_digest(root)
        self._dependencies = Dependencies(sources, root)

    def recall(self, day: Day, task: Task) -> Sequence[str] | None:
        """The names of a task's tests if all passed for this content, or None if that is not known."""
        if self.is_fresh or self.import_error:
            return None
        names = self.read(task.id, self.keys[day_name(day)])
        return names if isinstance(names, list) else None

    def keep(self, day: Day, passed: Mapping[Task, Sequence[str]]) -> None:
        """Remember tasks of which no test failed, unless tests or tools changed while the tests ran."""
        if passed and not self.import_error and common_digest(self.root) == self.common:
            for task, names in passed.items():
                self.write(task.id, self.keys[day_name(day)], [*names])

    @cached_property
    def whole(self) -> str:
        """Digest of the whole package and of everything else that a day depends on."""
        files = sorted((path.as_posix(), source) for path, source in self.sources.items())
        return digest_of([self.common, *(part for file in files for part in file)])

    @cached_property
    def import_error(self) -> str | None:
        """Why the package does not import, so that no test passes; None if it does."""
        if self.read("imports", self.whole):
            return None
        error = import_error(self.sources)
        if error is None:
            self.write("imports", self.whole, True)
        return error

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """Digest of what each day depends on, by the day's name; remembered too while nothing changes."""
        kept = self.read("keys", self.whole)
        names = {day_name(day): day for day in load_course().days}
        if isinstance(kept, dict) and kept.keys() == names.keys():
            return kept
        keys = {name: digest_of([self.common, self._dependencies.digest(day)]) for name, day in names.items()}
        self.write("keys", self.whole, keys)
        return keys

    def read(self, name: str, key: str) -> Any:
        """The value written under a name and a key; None if it is missing or damaged."""
        try:
            content = json.loads((self.folder / f"{name}-{key}.json").read_text(encoding="utf-8"))
            value = content["value"]
            return value if content["digest"] == digest_of([name, key, json.dumps(value)]) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, name: str, key: str, value: Any) -> None:
        """Write a file atomically and remove old ones; if the folder cannot be written, nothing is kept."""
        content = {"digest": digest_of([name, key, json.dumps(value)]), "value": value}
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                (Path(folder) / "new").write_text(json.dumps(content), encoding="utf-8")
                os.replace(Path(folder) / "new", self.folder / f"{name}-{key}.json")
            files = sorted(self.folder.glob(f"{name}-*.json"), key=lambda file: file.stat().st_mtime_ns)
            for old in files[:-FILES_PER_TASK]:
                old.unlink()


def day_name(day: Day) -> str:
    """A day's week and number, as 2.7."""
    return f"{day.week}.{day.day}"
