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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from .contest import CHUNK, ROWS, Contest, Part, Run, Times
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

FIRST_ROUNDS, ROUNDS = 2, 10
SECONDS_PER_ROUND = 1e-3
MOST_CALLS = 32
HOPELESS = 3
"""As many times slower than the fastest in the first rounds, a candidate has lost."""

Clock = Callable[[], float]


def choose(contest: Contest[Part], table: "Table") -> Part:
    """The part that a model is made of, as TINY_LLM_KERNELS has it."""
    mode = kernels_mode() if contest.is_kernel else "race"
    if mode == "race":
        names = contest.admitted(contest.correct(contest.verdicts()))
        if len(names) > 1 and contest.start is not None:
            times = finished(table.times(contest, names))
            return contest.part(contest.winners(times)) if times else contest.fallback
        return contest.candidates[names[0]] if names else contest.fallback
    if mode in contest.candidates and contest.judge(mode) == "right":
        is_given = mode == "own" and "given" in contest.candidates and contest.judge("given") == "right"
        return contest.candidates["given" if is_given else mode]
    return contest.fallback


def finished(times: Times) -> Times:
    """The times of those candidates that ran without an error."""
    return {name: of_rows for name, of_rows in times.items() if math.isfinite(of_rows[CHUNK])}


# --- timing -------------------------------------------------------------------------------------------------


def measure(contest: Contest[Any], names: Collection[str], clock: Clock) -> dict[str, dict[int, float]]:
    """Seconds of a call of each candidate, by number of rows; infinitely many of one that raises an error."""
    start = contest.start
    assert start is not None  # or there is no race
    times: dict[str, dict[int, float]] = {name: {} for name in names}
    in_race = contest.without_failing(names, lambda name: start(contest.candidates[name]))
    for rows in ROWS:
        runs = contest.without_failing(in_race, lambda name: warm(in_race[name](rows)))  # noqa: B023
        in_race = {name: in_race[name] for name in runs}
        for name, seconds in measure_in_turns(runs, clock).items():
            times[name][rows] = seconds
    return {name: times[name] if name in in_race else dict.fromkeys(ROWS, math.inf) for name in names}


def warm(run: Run) -> Run:
    """The same run after a first call, which compiles and takes memory."""
    call, first = run
    mx.eval(call(first))
    return run


def measure_in_turns(runs: Mapping[str, Run], clock: Clock) -> dict[str, float]:
    """Least seconds of a call over some rounds in which all take turns: what else runs only adds to them."""
    if not runs:
        return {}
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


@cache
def announce() -> None:
    """Say once that the next seconds go to a race."""
    notice("racing the kernels against MLX's operations, once; `pdm run bench race` shows the table")


@dataclass(frozen=True)
class Table:
    """The times of all operations, in a file.

    Processes that come at the same time race one after the other, and the later ones read what the first
    has found.

    Args:
        path: of the file; None where there is no place to keep it.
        clock: what measures, in seconds.
        announce: called before a race.
    """

    path: Path | None
    clock: Clock = time.perf_counter
    announce: Callable[[], None] = announce

    def times(self, contest: Contest[Any], names: Collection[str], is_fresh: bool = False) -> Times:
        """The times of these candidates: those that are kept, or new ones."""
        with self._alone():
            kept = self._read()
            times = kept.get(contest.key, {})
            if is_fresh or not set(names) <= times.keys():
                self.announce()
                times = measure(contest, names, self.clock)
                self._write({**kept, contest.key: times})
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


def race_table(*folders: Path) -> Table:
    """The table of this machine for the kernels in some folders, by name and content of their files."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(str(file.relative_to(folder.parent)).encode() + file.read_bytes())
    device = mx.default_device()
    with suppress(BuildError):
        digest.update(f"{machine_key()} {architecture_flags()} {num_threads()}".encode())
    parts = (device, mx.device_info(device).get("device_name"), version("mlx"), mlx_backend(), headers())
    digest.update(f"{parts} {is_on('TINY_LLM_BLAS')} {is_invariant()}".encode())
    try:
        return Table(cache_dir() / f"race-{digest.hexdigest()[:16]}.json")
    except OSError:
        return Table(None)
