"""Whether other programs compute while something is measured, and what becomes of the numbers if they do."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil

from scripts.hardware.processor import num_cores

ACCEPT_BUSY = "TINY_LLM_BUSY"
RECORD = "TINY_LLM_RECORD"  # `pdm run book record` names a file here, for the chart of the command it records
LOOK_SECONDS = 1.0
MOST_USED = 0.05  # of the time of all cores


@dataclass(frozen=True)
class Others:
    """What other processes used of the cores' time: the share of all cores, and the busiest of one core."""

    share: float
    busiest: str = ""
    busiest_share: float = 0.0

    def __str__(self) -> str:
        busiest = f", the busiest {self.busiest} with {self.busiest_share:.0%} of a core" * bool(self.busiest)
        return f"other processes used {self.share:.0%} of {num_cores()} cores{busiest}"


class Watch:
    """Notes what every process has used, and later tells what others used since."""

    def __init__(self) -> None:
        self.start, self.idle, self.own, self.used = (
            time.perf_counter(),
            idle_seconds(),
            own_seconds(),
            used(),
        )

    def others(self) -> Others:
        """What others used since this was made.

        What processes say of themselves is not all: some end meanwhile, some belong to other users or
        containers. So the idle time of the cores counts too, less what this process and its children used.
        """
        seconds = time.perf_counter() - self.start
        now = used()
        spent = {process: now[process] - self.used.get(process, 0.0) for process in now}
        unaccounted = num_cores() * seconds - (idle_seconds() - self.idle) - (own_seconds() - self.own)
        in_all = max(unaccounted, sum(spent.values()), 0.0) / (num_cores() * seconds)
        process = max(spent, key=lambda each: spent[each], default=None)
        if process is None or spent[process] < 0.01 * seconds:
            return Others(in_all)
        return Others(in_all, name_of(process), spent[process] / seconds)


def cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(num_cores()))


def idle_seconds() -> float:
    """Of these cores, since the system's start."""
    times = psutil.cpu_times(percpu=True)
    return float(sum(times[core].idle + getattr(times[core], "iowait", 0.0) for core in cores()))


def own_seconds() -> float:
    """Of this process and its children, those that have ended included."""
    children = psutil.Process().children(recursive=True)
    return sum(os.times()[:4]) + sum(seconds_of(child, 4) or 0.0 for child in children)


def used() -> dict[Any, float]:
    """CPU seconds of every process but this one and its children, as far as the system tells."""
    own = {psutil.Process(), *psutil.Process().children(recursive=True)}
    seconds = {process: seconds_of(process, 2) for process in psutil.process_iter() if process not in own}
    return {process: each for process, each in seconds.items() if each is not None}


def seconds_of(process: Any, num_fields: int) -> float | None:
    """As user and in the system; with four fields those of ended children too. None if it can't be read."""
    try:
        return float(sum(process.cpu_times()[:num_fields]))
    except psutil.Error:
        return None


def name_of(process: Any) -> str:
    """A process as the system lists it."""
    try:
        return f"{process.name()} (process {process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def looked() -> Others:
    """What others use now."""
    watch = Watch()
    time.sleep(LOOK_SECONDS)
    return watch.others()


def accepts_busy() -> bool:
    """Whether numbers of a busy machine may be written down."""
    return os.environ.get(ACCEPT_BUSY, "0") != "0"


def judge(others: Others, records: bool) -> None:
    """Warn of a busy machine; refuse to record on it with a ValueError."""
    if others.share <= MOST_USED:
        return
    if not records or accepts_busy():
        print(f"warning: {others}: the numbers are those of a busy machine", file=sys.stderr)
        return
    raise ValueError(
        f"nothing was recorded, since {others} ({MOST_USED:.0%} at most are quiet): end what computes and "
        f"run this again, or set {ACCEPT_BUSY}=1 to record all the same"
    )
