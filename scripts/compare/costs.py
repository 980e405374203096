"""One case through both packages: the two results compared, and what each cost."""

import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import TypeVar

import mlx.core as mx

from scripts.compare.differences import Difference, Tree, arrays_of, first_difference
from scripts.compare.learner import Learner, silent
from scripts.compare.library import Case, Library
from scripts.hardware.memory import finish_work, memory_use
from scripts.sources.chunks import HOLE

SECONDS_PER_CASE = 0.3  # after so long no repeat is started,
FEW = 3  # unless there were fewer: then
LONGEST_CASE = 1.5  # seconds
SECONDS_TO_END = 10.0  # a call that computes longer than this is given up
LONGEST_WAIT = 30
"""How many times as long a call may wait as it may compute."""

Result = TypeVar("Result")


class NoEndError(BaseException):
    """Ends the learner's code from outside; no `except Exception` of theirs can catch it."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a run, and the most bytes it held at once beyond what was held before."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Verdict:
    """One row: no difference means equal; what failed has no costs."""

    case: Case
    difference: Difference | None
    costs: tuple[Cost, ...] = ()
    """Yours, then the reference's."""


def compare_case(case: Case, learner: Learner, mine: Library, reference: Library, repeats: int) -> Verdict:
    """Run a case through both packages, in turns.

    The first run of each is compared, and warms up what the others time.
    """
    expected = computed(lambda: case.result(reference))

    def run_both() -> Verdict:
        difference = first_difference(computed(lambda: case.result(mine)), expected)
        return Verdict(
            case, difference, measure((lambda: case.result(mine), lambda: case.result(reference)), repeats)
        )

    verdict = guarded(learner, run_both, SECONDS_TO_END)
    return Verdict(case, verdict) if isinstance(verdict, Difference) else verdict


def guarded(learner: Learner, act: Callable[[], Result], seconds: float) -> Result | Difference:
    """What a function of the learner's code returns, or what it raised in place of that.

    Only Ctrl-C gets through: a learner's code may also loop for ever or leave the program.
    """
    try:
        with silent(), time_limit(seconds):
            return act()
    except KeyboardInterrupt:
        raise
    except NoEndError as error:
        line = learner.line_of(error)
        return Difference("no end", f"{error}{f' In {line}' if line else ''}")
    except BaseException as error:
        if isinstance(error, NotImplementedError) and HOLE.search(str(error)):
            return Difference("hole", str(error))
        return Difference("error", learner.describe(error))


def computed(run: Callable[[], Tree]) -> Tree:
    """What a run returns, with every array evaluated."""
    tree = run()
    mx.eval(*arrays_of(tree))
    return tree


def measure(runs: tuple[Callable[[], Tree], ...], repeats: int) -> tuple[Cost, ...]:
    """Median time and largest memory of each, run in turns so that a slow moment meets them all."""
    rounds: list[list[Cost]] = []
    gc.collect()
    start = time.perf_counter()
    while len(rounds) < repeats:
        rounds.append([measure_once(run) for run in runs])
        if time.perf_counter() - start > (SECONDS_PER_CASE if len(rounds) >= FEW else LONGEST_CASE):
            break
    return tuple(
        Cost(median(each.seconds for each in costs), max(each.peak_bytes for each in costs))
        for costs in zip(*rounds, strict=True)
    )


def measure_once(run: Callable[[], Tree]) -> Cost:
    """Time and memory of a single run."""
    with memory_use() as memory:
        start = time.perf_counter()
        tree = computed(run)
        finish_work()
        seconds = time.perf_counter() - start
    del tree
    return Cost(seconds, memory.peak)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise NoEndError in a block that computes longer, again each second if the block catches it.

    What other programs do in the meantime doesn't count. A block that waits has `LONGEST_WAIT` times as long.
    """

    def give_up(number: int, frame: FrameType | None) -> None:
        is_computing = number == signal.SIGPROF
        raise NoEndError(
            f"still running after {seconds:g} s: a loop that makes no progress?"
            if is_computing
            else f"still waiting after {LONGEST_WAIT * seconds:g} s"
        )

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, LONGEST_WAIT * seconds),
    }
    before = {number: signal.signal(number, give_up) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit, 1.0)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
