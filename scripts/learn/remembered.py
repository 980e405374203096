"""What `progress` and `watch` remember: what a task's tests said of the content that they depend on.

Each task has a few small files in the cache folder, named after the content they hold for. A file is put in
place in one step; one that is damaged counts as missing.
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
from scripts.learn.influences import Influences, common_digest, digest_of
from scripts.learn.learner import check_import
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources

FOLDER = "remembered"
FILES_PER_TASK = 8


@dataclass(frozen=True)
class Result:
    """The tests of a task that passed, and the messages of those that failed."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def is_lasting(self) -> bool:
        """Whether all passed, or all stop at what is not written; any other failure may be an accident."""
        return not self.failed or (not self.passed and all(map(HOLE.search, self.failed.values())))


class Memory:
    """The results of tasks for the package as it is now.

    Args:
        sources: the package's, by their path within it.
        is_fresh: forget what is remembered, and remember anew.
        root: the folder that holds the tests.
    """

    def __init__(self, sources: Sources, is_fresh: bool = False, root: Path = ROOT) -> None:
        self.sources, self.root, self.is_fresh = sources, root, is_fresh
        self.folder = cache_dir() / FOLDER
        self.common = common_digest(root)
        self._influences = Influences(sources, root)

    def recall(self, day: Day, task: Task) -> Result | None:
        """What the tests of a task said of this content; None if that is not known."""
        if self.is_fresh or not self.imports:
            return None
        return result_in(self.read(task.id, self.keys[day_name(day)]))

    def keep(self, day: Day, results: Mapping[Task, Result]) -> None:
        """Remember those results that last, unless the tests or tools changed while they ran."""
        lasting = {task: result for task, result in results.items() if result.is_lasting}
        if lasting and self.imports and common_digest(self.root) == self.common:
            for task, result in lasting.items():
                content = {"passed": list(result.passed), "failed": dict(result.failed)}
                self.write(task.id, self.keys[day_name(day)], content)

    @cached_property
    def whole(self) -> str:
        """A word for the whole package, and all else."""
        files = sorted((path.as_posix(), source) for path, source in self.sources.items())
        return digest_of([self.common, *(part for file in files for part in file)])

    @cached_property
    def imports(self) -> bool:
        """Whether the package can be imported, without which no test passes."""
        if self.read("imports", self.whole) is None:
            try:
                check_import(self.sources)
            except ValueError:
                return False
            self.write("imports", self.whole, True)
        return True

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """By a day's name, a word for what counts on it: itself remembered for a package that stays."""
        kept = self.read("keys", self.whole)
        names = {day_name(day): day for day in load_course().days}
        if isinstance(kept, dict) and kept.keys() == names.keys():
            return kept
        keys = {name: digest_of([self.common, self._influences.digest(day)]) for name, day in names.items()}
        self.write("keys", self.whole, keys)
        return keys

    def read(self, name: str, key: str) -> Any:
        """What was written under a name for a content; None if it is missing or damaged."""
        try:
            content = json.loads((self.folder / f"{name}-{key}.json").read_text(encoding="utf-8"))
            value = content["value"]
            return value if content["digest"] == digest_of([name, key, json.dumps(value)]) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, name: str, key: str, value: Any) -> None:
        """Put a file in place in one step and remove old ones; without a folder for it, nothing is kept."""
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
    """Week and day."""
    return f"{day.week}.{day.day}"


def result_in(content: Any) -> Result | None:
    """The result that a file holds, if it holds one that lasts."""
    if not isinstance(content, dict):
        return None
    result = Result(tuple(content["passed"]), content["failed"])
    return result if result.is_lasting else None
