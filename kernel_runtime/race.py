"""Race the candidates for an operation: those that are correct are timed, and the fastest one is used.

A race is run once per machine and kept in the cache of compiled code, under a name that holds a hash of the
machine, of MLX and of the kernels: a kernel that changes races again.
"""

import fcntl
import hashlib
import json
import math
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import mlx.core as mx

from .cpu_kernel import headers, mlx_backend, num_threads
from .native import (
    BuildError,
    architecture_flags,
    cache_dir,
    is_invariant,
    is_on,
    kernels_mode,
    machine_key,
    notice,
)
from .self_check import CLOSE, Verdict, judge

CHUNK = 256
ROWS = (1, 8, 64, CHUNK)
"""Numbers of rows that are timed, each for the shapes around it."""
MOST_ROWS = (2, 22, 128)
"""Most rows of each class but the last: about as many times one class as the next is of them."""
FIRST_ROUNDS, ROUNDS = 3, 10
SECONDS_PER_ROUND = 1e-3
MOST_CALLS = 32
HOPELESS = 3
"""As many times slower than the fastest in the first rounds, a candidate has lost."""
MARGIN = 0.05
"""By how much another candidate must beat the first: less may be noise."""
COURSE = frozenset(("own", "given"))

Part = TypeVar("Part")
Function = TypeVar("Function", bound=Callable[..., Any])
Clock = Callable[[], float]
Run = tuple[Callable[[mx.array], mx.array], mx.array]
"""A call that is ready, and its first input."""
Times = Mapping[str, Mapping[int, float]]
"""Seconds of a call, by candidate and number of rows."""


@dataclass(frozen=True)
class Contest(Generic[Part]):
    """An operation and the candidates that may compute it.

    Args:
        name: of the operation.
        kernel: name of the course's kernel, as notices say it.
        candidates: the parts that a model may be made of: "own", "given", "mlx" and "plain", as far as they
            exist; what is given with the course takes the place of "own" once that works.
        fallback: the part of a model without kernels.
        sample: a small output of a candidate.
        expected: the same output by MLX's own operations.
        start: a candidate ready for so many rows, as a function of an array of one shape and type, and the
            first such array. The output of each call is the input of the next, as in a model.
        by_rows: one part of those for each number of rows; None if one must compute all of them.
        keeps_bits: the candidates whose output for a row is the same to the last bit among any other rows.
        close: largest error, relative to the largest entry.
    """

    name: str
    kernel: str
    candidates: Mapping[str, Part]
    fallback: Part
    sample: Callable[[Part], mx.array]
    expected: Callable[[], mx.array]
    start: Callable[[Part, int], Run]
    by_rows: Callable[[Mapping[int, Part]], Part] | None = None
    keeps_bits: Collection[str] = ("own",)
    close: float = CLOSE

    def judge(self, name: str) -> Verdict:
        """Whether a candidate is correct; a notice says so if one of the course's is not."""
        part = self.candidates[name]
        kernel = "integer_matmul" if name == "given" else self.kernel
        return judge(kernel, lambda: self.sample(part), self.expected, self.close, name in COURSE)

    def correct(self) -> list[str]:
        """The candidates that are correct; none until the course's kernel is written."""
        own = self.judge("own") if "own" in self.candidates else None
        if own == "missing":
            return []
        others = [
            name
            for name in self.candidates
            if name != "own" and (name != "given" or own == "right") and self.judge(name) == "right"
        ]
        return ["own", *others] if own == "right" else others

    def admitted(self, correct: Collection[str]) -> list[str]:
        """Those of the correct candidates that may win: all, or those that keep a row's bits."""
        return [name for name in correct if name in self.keeps_bits or not must_keep_bits(correct)]

    def winners(self, times: Times) -> dict[int, str]:
        """The fastest candidate for each number of rows, one and the same wherever they must not differ."""
        if self.by_rows is None or must_keep_bits(times):
            return dict.fromkeys(ROWS, fastest(times, ROWS))
        return {rows: fastest(times, [rows]) for rows in ROWS}

    def part(self, winners: Mapping[int, str]) -> Part:
        """What a model is made of if these win."""
        parts = {rows: self.candidates[name] for rows, name in winners.items()}
        if self.by_rows is None or len(set(parts.values())) == 1:
            return parts[CHUNK]
        return self.by_rows(parts)


def must_keep_bits(candidates: Collection[str]) -> bool:
    """Whether a row's bits may not depend on the number of rows.

    TINY_LLM_INVARIANT asks for that; on a CPU, the course's kernels promise it.
    """
    has_kernel = not COURSE.isdisjoint(candidates)
    return is_invariant() or (has_kernel and mx.default_device() != mx.gpu)


def choose(contest: Contest[Part], table: "Table") -> Part:
    """The part that a model is made of, as TINY_LLM_KERNELS has it."""
    mode = kernels_mode()
    if mode == "race":
        names = contest.admitted(contest.correct())
        if len(names) > 1:
            return contest.part(contest.winners(table.times(contest, names)))
        return contest.candidates[names[0]] if names else contest.fallback
    if mode in contest.candidates and contest.judge(mode) == "right":
        is_given = mode == "own" and "given" in contest.candidates and contest.judge("given") == "right"
        return contest.candidates["given" if is_given else mode]
    return contest.fallback


def fastest(times: Times, rows: Sequence[int]) -> str:
    """The candidate with the lowest mean ratio to the first; that one unless the other wins by MARGIN."""
    first = next(iter(times))

    def ratio(name: str) -> float:
        return math.prod(times[name][count] / times[first][count] for count in rows) ** (1 / len(rows))

    best = min(times, key=ratio)
    return best if ratio(best) < 1 - MARGIN else first


def switch(functions: Mapping[int, Function], rows_of: Callable[..., int]) -> Function:
    """A function that calls the one for its number of rows."""

    def call(*args: Any, **named: Any) -> Any:
        return functions[row_class(rows_of(*args))](*args, **named)

    return cast(Function, call)


def row_class(rows: int) -> int:
    """Which of ROWS stands for a number of rows."""
    return ROWS[bisect_left(MOST_ROWS, rows)]


# --- timing -------------------------------------------------------------------------------------------------


def measure(contest: Contest[Any], names: Collection[str], clock: Clock) -> dict[str, dict[int, float]]:
    """Seconds of a call of each candidate, by number of rows."""
    times: dict[str, dict[int, float]] = {name: {} for name in names}
    for rows in ROWS:
        runs = {name: contest.start(contest.candidates[name], rows) for name in names}
        for name, seconds in measure_in_turns(runs, clock).items():
            times[name][rows] = seconds
    return times


def measure_in_turns(runs: Mapping[str, Run], clock: Clock) -> dict[str, float]:
    """Least seconds of a call over some rounds in which all take turns: what else runs only adds to them."""
    for call, first in runs.values():
        mx.eval(call(first))  # compiles and takes memory
    least = least_of_rounds(runs, FIRST_ROUNDS, 1, clock)
    fastest_call = min(least.values())
    in_race = {name: run for name, run in runs.items() if least[name] <= HOPELESS * fastest_call}
    num_calls = max(1, min(MOST_CALLS, round(SECONDS_PER_ROUND / max(fastest_call, 1e-9))))
    return {**least, **least_of_rounds(in_race, ROUNDS, num_calls, clock)}


def least_of_rounds(
    runs: Mapping[str, Run], num_rounds: int, num_calls: int, clock: Clock
) -> dict[str, float]:
    """Least seconds of a call over rounds of so many calls."""
    rounds = [
        {name: seconds_of(run, num_calls, clock) for name, run in runs.items()} for _ in range(num_rounds)
    ]
    return {name: min(each[name] for each in rounds) for name in runs}


def seconds_of(run: Run, num_calls: int, clock: Clock) -> float:
    """Seconds of a call, each on what the call before computed."""
    call, x = run
    start = clock()
    for _ in range(num_calls):
        x = call(x)
    mx.eval(x)
    return (clock() - start) / num_calls


# --- the table that is kept ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The times of all operations, in a file.

    Processes that come at the same time race one after the other, and the later ones read what the first
    has found.

    Args:
        path: of the file; None where there is no place to keep it.
        clock: what measures, in seconds.
    """

    path: Path | None
    clock: Clock = time.perf_counter

    def times(self, contest: Contest[Any], names: Collection[str], is_fresh: bool = False) -> Times:
        """The times of these candidates: those that are kept, or new ones."""
        with self._alone():
            kept = self._read()
            times = kept.get(contest.name, {})
            if is_fresh or not set(names) <= times.keys():
                announce()
                times = measure(contest, names, self.clock)
                self._write({**kept, contest.name: times})
        return {name: times[name] for name in names}

    def _read(self) -> dict[str, Times]:
        """What is kept; nothing if the file is missing or broken."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            return {
                operation: {
                    name: {rows: float(by_rows[str(rows)]) for rows in ROWS}
                    for name, by_rows in times.items()
                }
                for operation, times in kept.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, kept: Mapping[str, Times]) -> None:
        """Put a new file in place, in one step."""
        if self.path is None:
            return
        with suppress(OSError), tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".race-") as folder:
            new = Path(folder) / self.path.name
            new.write_text(json.dumps(kept), encoding="utf-8")
            os.replace(new, self.path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process races."""
        with ExitStack() as stack:
            if self.path is not None:
                with suppress(OSError):
                    lock = stack.enter_context(self.path.with_suffix(".lock").open("w"))
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@cache
def announce() -> None:
    """Say once that the next seconds go to a race."""
    notice("racing the kernels against MLX's operations; `pdm run bench race` shows the table")


def race_table(package: Path) -> Table:
    """The table of this machine for the kernels of a package.

    Args:
        package: its folder.
    """
    digest = hashlib.sha256()
    for folder in ("kernels", "given"):
        for file in sorted((package / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    device = mx.default_device()
    with suppress(BuildError):
        digest.update(f"{machine_key()} {architecture_flags()} {num_threads()}".encode())
    parts = (device, mx.device_info(device).get("device_name"), version("mlx"), mlx_backend(), headers())
    digest.update(f"{parts} {is_on('TINY_LLM_BLAS')} {is_invariant()}".encode())
    try:
        return Table(cache_dir() / f"race-{digest.hexdigest()[:16]}.json")
    except OSError:
        return Table(None)
