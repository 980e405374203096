"""Start the processes that share a model, and end all of them when one ends."""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from pathlib import Path
from types import FrameType

from scripts.errors import SIGNALLED, USAGE_EXIT_CODE, say_interrupted
from scripts.run.child_process import ChildProcess
from tiny_llm.ranks.run_rank import LOST_EXIT_CODE, LOST_SIGNAL
from tiny_llm.ranks.sleeping_ranks import WAKE_PIPES

POLL_SECONDS = 0.02
CAUSE_SECONDS = 30.0
"""How long to look for the reason when a rank has ended because it lost another one."""
STOP_SECONDS = 5.0
"""How long the other ranks may take to end after each of two signals, once a rank has failed."""
GRACE_SECONDS = 30.0
"""How long the other ranks may take to end after one that has not failed."""
STOPPED_SECONDS = 5.0
"""How long a rank may be stopped by a signal before it counts as failed."""


def is_rank() -> bool:
    """Whether this process is one of several ranks, started by `run_ranks` or by mlx.launch."""
    return "MLX_RANK" in os.environ


def run_ranks(command: Sequence[str], num_ranks: int) -> int:
    """Run a command once per rank on this machine, and wait until all have ended.

    The environment is the one in which `mlx.launch` starts the ranks of its ring. Unlike it, this notices
    which rank fails, doesn't keep a core busy, and doesn't exit with 0 after a failure. It also connects the
    ranks by pipes, so that they can sleep when there is nothing to do.

    SIGINT, SIGTERM and SIGHUP go to rank 0 alone, which lets the others end. If another rank fails, rank 0
    gets `LOST_SIGNAL`, and answers what it can. If this process ends, all ranks do.

    Returns:
        The exit code: 0 if rank 0 ended with 0 and no other rank failed; 2 if a rank refused its input; 128
        more than its number if a signal ended rank 0; 1 after a failure. Then the number of the rank that
        failed is on standard error.
    """
    ranks: list[ChildProcess] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        stopped_at_exit(ranks),
        forwarded(ranks) as signals,
        lifeline() as pipe,
    ):
        env = environment(Path(folder) / "hosts.json", num_ranks)
        with wake_pipes(num_ranks) as ends:
            for rank, pipes in enumerate(ends):
                mine = env | {"MLX_RANK": str(rank), WAKE_PIPES: ",".join(map(str, pipes))}
                ranks.append(ChildProcess(command, mine, pipe, pipes=pipes))
        for number in signals:  # that came before rank 0 had started
            ranks[0].send_signal(number)
        stopped = wait_for_first(ranks)
        first = cause(codes_of(ranks)) if stopped is None else stopped
        hung = end_others(ranks, first)
    for each in ranks:
        each.finish_output()
    if stopped is not None:
        print(f"error: rank {stopped} was stopped by a signal; all ranks were ended", file=sys.stderr)
        return 1
    return report(first, codes_of(ranks), hung, signals)


@contextmanager
def lifeline() -> Iterator[int]:
    """The end of a pipe for children to read from. It has an end when this process has one, or the block."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


@contextmanager
def wake_pipes(num_ranks: int) -> Iterator[list[list[int]]]:
    """A pipe from rank 0 to each other rank: the ends of each rank, which are closed here after the block."""
    pipes = [os.pipe() for _ in range(num_ranks - 1)]
    try:
        yield [[writing for _, writing in pipes], *([reading] for reading, _ in pipes)]
    finally:
        for end in chain.from_iterable(pipes):
            os.close(end)


def environment(hostfile: Path, num_ranks: int) -> dict[str, str]:
    """What all ranks have in their environment. Write their addresses to `hostfile`."""
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(num_ranks)]))
    threads = str(max(1, (os.cpu_count() or 1) // num_ranks))
    return {"TINY_LLM_THREADS": threads} | os.environ | {"MLX_HOSTFILE": str(hostfile)}


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def stopped_at_exit(children: Sequence[ChildProcess]) -> Iterator[None]:
    """Leave no child behind, whatever happens in the block."""
    try:
        yield
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()


@contextmanager
def forwarded(ranks: Sequence[ChildProcess]) -> Iterator[list[int]]:
    """Pass signals on to rank 0 within the block. Return a list of those that have come.

    Without SIGHUP, the ranks would outlive the terminal. `nohup` ignores it, and that is left so.
    """
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for rank in ranks[:1]:
            rank.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_first(ranks: Sequence[ChildProcess]) -> int | None:
    """Wait until a rank has ended, and for the `cause` if it is one that lost another one.

    Returns:
        The number of a rank that a signal has stopped, after killing it: it would hold up the others. None if
        there was no such rank.
    """
    while True:
        wait_until(lambda: codes_of(ranks) or stopped(ranks))
        if not stopped(ranks):
            break
        wait_until(lambda: not stopped(ranks), STOPPED_SECONDS)
        if halted := stopped(ranks):
            ranks[halted[0]].kill()
            ranks[halted[0]].wait()
            return halted[0]
    wait_until(lambda: set(codes_of(ranks).values()) - {LOST_EXIT_CODE}, CAUSE_SECONDS)
    return None


def stopped(ranks: Sequence[ChildProcess]) -> list[int]:
    """The numbers of the ranks that a signal has stopped."""
    return [number for number, rank in enumerate(ranks) if rank.is_stopped]


def end_others(ranks: Sequence[ChildProcess], first: int) -> list[int]:
    """Wait for the other ranks to end, after asking them to if the first one failed.

    After a second signal, rank 0 exits even if its engine waits for a rank that is lost.

    Returns:
        The numbers of those that did not end and were killed.
    """
    if ranks[first].returncode:
        for number_of_rank_0 in (LOST_SIGNAL, signal.SIGTERM):
            for number, rank in enumerate(ranks):
                rank.send_signal(signal.SIGTERM if number else number_of_rank_0)
            wait_until(lambda: len(codes_of(ranks)) == len(ranks), STOP_SECONDS)
    else:
        wait_until(lambda: len(codes_of(ranks)) == len(ranks), GRACE_SECONDS)
    hung = [number for number in range(len(ranks)) if number not in codes_of(ranks)]
    for number in hung:
        ranks[number].kill()
        ranks[number].wait()
    return hung


def wait_until(
    condition: Callable[[], object], seconds: float = inf, poll_seconds: float = POLL_SECONDS
) -> None:
    """Wait until something is true, or for so long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(poll_seconds)


def codes_of(ranks: Sequence[ChildProcess]) -> dict[int, int]:
    """The exit codes of the ranks that have ended, by their numbers."""
    codes = {number: rank.poll() for number, rank in enumerate(ranks)}
    return {number: code for number, code in codes.items() if code is not None}


def cause(codes: Mapping[int, int]) -> int:
    """The rank to which the end is due: one that a signal ended, else one that failed, else the first."""
    return min(codes, key=lambda number: (codes[number] in (0, LOST_EXIT_CODE), codes[number] > 0, number))


def report(first: int, codes: Mapping[int, int], hung: Sequence[int], signals: Sequence[int]) -> int:
    """Say which rank failed, if one did, and return the exit code."""
    if hung:
        after = f", after rank {first} {how_it_ended(codes[first])}" if codes[first] else ""
        for number in hung:
            print(f"error: rank {number} did not react any more and was killed{after}", file=sys.stderr)
        return 1
    if not codes[first]:
        first = cause(codes)  # another one may have failed since
    code = codes[first]
    if code in (0, USAGE_EXIT_CODE):
        return code
    if first == 0 and any(code in (-number, SIGNALLED + number) for number in signals):
        say_interrupted()
        return SIGNALLED + abs(code) % SIGNALLED
    print(f"error: rank {first} {how_it_ended(code)}; all ranks were stopped", file=sys.stderr)
    return 1


def how_it_ended(code: int) -> str:
    """What an exit code of a process means."""
    if code == LOST_EXIT_CODE:
        return "lost another rank"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
