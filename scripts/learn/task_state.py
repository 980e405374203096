"""What the tests say of a task, and what of a package is written."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from scripts.course import Day, Gpu, Task, load_course
from scripts.learn.learner import tasks_with_holes
from scripts.learn.optional import chosen_gpu, left_out, not_begun
from scripts.sandbox import Outcome
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources

TEST_NAME = re.compile(r"::test_task_(\d+)_")


class Mark(Enum):
    """What the tests say of a task: its sign, its words and its colour."""

    PASSED = ("✓", "passed", "green")
    FAILING = ("✗", "failing", "red")
    NOT_WRITTEN = ("·", "not written yet", "dim")
    NO_TEST_RAN = ("-", "no test runs on this machine", "dim")
    LEFT_OUT = ("○", "optional", "dim")


@dataclass(frozen=True)
class TaskState:
    """One task and what became of its tests, which are not run until one of its functions is written."""

    day: Day
    task: Task
    passed: tuple[str, ...]
    failed: Mapping[str, str]
    has_holes: bool = False
    is_core: bool = True
    is_begun: bool = True

    @property
    def is_left_out(self) -> bool:
        """Whether the learner may pass it over and does."""
        return not (self.is_core or self.is_begun)

    @property
    def mark(self) -> Mark:
        """Not written yet if it is not begun, or if no test got further than a hole."""
        if self.is_left_out:
            return Mark.LEFT_OUT
        if not self.failed and not self.is_begun:
            return Mark.NOT_WRITTEN
        if not self.failed:
            return Mark.PASSED if self.passed else Mark.NO_TEST_RAN
        at_holes = all(HOLE.search(message) for message in self.failed.values())
        return Mark.NOT_WRITTEN if at_holes and not self.passed else Mark.FAILING

    @property
    def is_solved(self) -> bool:
        """Nothing is left to do."""
        return self.is_begun and not self.failed

    @property
    def waits_for(self) -> str | None:
        """The first function of another task that the tests stop at, if this task's own are all written."""
        found = [HOLE.search(message) for message in self.failed.values()]
        if self.has_holes or not all(found):
            return None
        return min((match[0] for match in found if match), default=None)

    @property
    def test_command(self) -> str:
        """What the learner types to see its failures."""
        return f"pdm run test --week {self.day.week} --day {self.day.day} --task {self.task.number}"


@dataclass(frozen=True)
class Written:
    """What of a learner's package is not written yet, by the ids of tasks.

    Attributes:
        gpu: whose kernels are core.
        unwritten: tasks with a function that is a hole.
        not_begun: tasks whose functions are all holes.
        left_out: those of them that are optional.
    """

    gpu: Gpu
    unwritten: Collection[str] = ()
    not_begun: Collection[str] = ()
    left_out: Collection[str] = ()

    @classmethod
    def in_package(cls, sources: Sources) -> "Written":
        """For the GPU that was chosen."""
        gpu = chosen_gpu()
        course = load_course()
        return cls(gpu, tasks_with_holes(sources), not_begun(sources, course), left_out(sources, gpu, course))

    def with_asked(self, task_id: str | None) -> "Written":
        """The same for a learner who asks for a task, which is not left out then."""
        return replace(self, left_out={*self.left_out} - {task_id})

    def state(self, day: Day, task: Task, passed: Collection[str], failed: Mapping[str, str]) -> TaskState:
        """A task with the names of its tests that passed and the messages of those that failed."""
        where = task.id in self.unwritten, task.is_core(self.gpu), task.id not in self.not_begun
        return TaskState(day, task, tuple(passed), failed, *where)

    def state_after(self, outcome: Outcome, day: Day, task: Task) -> TaskState:
        """A task's share of the outcome of its day; a test file that does not load fails for every task."""
        own = {None} if task.id in self.not_begun else {task.number, None}
        passed = [name for name in outcome.passed if task_of(name) in own]
        return self.state(
            day,
            task,
            passed,
            {name: message for name, message in outcome.failed.items() if task_of(name) in own},
        )

    @property
    def pytest_options(self) -> list[str]:
        """Options of the tests of a day."""
        return ["--tb=line", "--gpu", self.gpu]


def task_of(test: str) -> int | None:
    """The number in a test's name, or None."""
    match = TEST_NAME.search(test)
    return int(match[1]) if match else None
