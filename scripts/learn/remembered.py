"""What `progress` and `watch` remember: the outcome of each task's tests, by the content it depends on.

Each task has a few small files in the cache folder, named after a digest of that content. Files are replaced
atomically, and a damaged one counts as missing.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scripts.checkpoints.files import cache_dir
from scripts.course import ROOT, Day, Task, load_course
from scripts.learn.dependencies import Dependencies, common_digest, digest_of
from scripts.learn.learner import check_import
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources

FOLDER = "remembered"
FILES_PER_TASK = 8


@dataclass(frozen=True)
class Result:
    """The names of a task's tests that passed, and the messages of those that failed."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def is_lasting(self) -> bool:
        """Whether all passed or all stopped at a hole; any other failure may be an accident."""
        return not self.failed or (not self.passed and all(map(HOLE.search, self.failed.values())))


class Memory:
    """The remembered results of tasks for the package as it is now.

    Args:
        sources: of the package, by their path within it.
        is_fresh: recall nothing; new results are still kept.
        root: the folder that holds the tests.
    """

    def __init__(self, sources: Sources, is_fresh: bool = False, root: Path = ROOT) -> None:
        self.sources, self.root, self.is_fresh = sources, root, is_fresh
        self.folder = cache_dir() / FOLDER
        self.common = common_digest(root)
        self._dependencies = Dependencies(sources, root)

    def recall(self, day: Day, task: Task) -> Result | None:
        """The result of a task's tests for this content, or None if it is not known."""
        if self.is_fresh or not self.imports:
            return None
        return result_in(self.read(task.id, self.keys[day_name(day)]))

    def keep(self, day: Day, results: Mapping[Task, Result]) -> None:
        """Remember the lasting results, unless tests or tools changed while the tests ran."""
        lasting = {task: result for task, result in results.items() if result.is_lasting}
        if lasting and self.imports and common_digest(self.root) == self.common:
            for task, result in lasting.items():
                content = {"passed": list(result.passed), "failed": dict(result.failed)}
                self.write(task.id, self.keys[day_name(day)], content)

    @cached_property
    def whole(self) -> str:
        """Digest of the whole package and of everything else that a day depends on."""
        files = sorted((path.as_posix(), source) for path, source in self.sources.items())
        return digest_of([self.common, *(part for file in files for part in file)])

    @cached_property
    def imports(self) -> bool:
        """Whether the package can be imported; if not, no test passes."""
        if self.read("imports", self.whole) is None:
            try:
                check_import(self.sources)
            except ValueError:
                return False
            self.write("imports", self.whole, True)
        return True

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


def result_in(content: Any) -> Result | None:
    """The result that a file holds, if it is a lasting one."""
    if not isinstance(content, dict):
        return None
    result = Result(tuple(content["passed"]), content["failed"])
    return result if result.is_lasting else None
