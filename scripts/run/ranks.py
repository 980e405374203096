"""Start the processes that share a model, and end all of them when one ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LOST_EXIT_CODE = 75  # of a rank that ends only because another one has ended
POLL_SECONDS = 0.02
GRACE_SECONDS = 5.0
"""How long the other ranks may take to end after the first one."""


def is_rank() -> bool:
    """Whether this process is one of several ranks, started by `run_ranks` or by mlx.launch."""
    return "MLX_RANK" in os.environ


def run_ranks(command: Sequence[str], num_ranks: int) -> int:
    """Run a command once per rank on this machine, and wait until all have ended.

    The environment is the one in which `mlx.launch` starts the ranks of its ring. Unlike it, this notices
    which rank fails, doesn't keep a core busy, and doesn't exit with 0 after a failure.

    SIGINT and SIGTERM go to rank 0 alone, which lets the others end.

    Returns:
        The exit code: 0 if all ranks ended with 0; that of rank 0 if a signal stopped it or its input was
        wrong; 1 after a failure. The number of the rank that failed is on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        hostfile = Path(folder) / "hosts.json"
        hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(num_ranks)]))
        env = os.environ | {"MLX_HOSTFILE": str(hostfile)}
        env.setdefault("TINY_LLM_THREADS", str(max(1, (os.cpu_count() or 1) // num_ranks)))
        ranks = [
            subprocess.Popen(command, env=env | {"MLX_RANK": str(rank)}, start_new_session=True)
            for rank in range(num_ranks)
        ]
        with stopped_at_exit(ranks), forwarded_to(ranks[0]):
            first = wait_for_first(ranks)
            hung = end_others(ranks, first)
    return report(first, [rank.returncode for rank in ranks], hung)


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def stopped_at_exit(ranks: Sequence["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Leave no rank behind, whatever happens in the block."""
    try:
        yield
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


@contextmanager
def forwarded_to(leader: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass SIGINT and SIGTERM on to a process within the block."""

    def forward(number: int, frame: FrameType | None) -> None:
        if leader.poll() is None:
            leader.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_first(ranks: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Wait until a rank has ended. Return its number; of several, one that did not just lose another."""
    while True:
        ended = {number: rank.poll() for number, rank in enumerate(ranks) if rank.poll() is not None}
        if ended:
            return min(ended, key=lambda number: (ended[number] in (0, LOST_EXIT_CODE), number))
        time.sleep(POLL_SECONDS)


def end_others(ranks: Sequence["subprocess.Popen[bytes]"], first: int) -> list[int]:
    """Wait a moment for the other ranks to end, after asking them to if the first one failed.

    Returns:
        The numbers of those that did not end and were killed.
    """
    if ranks[first].returncode:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    hung = [number for number, rank in enumerate(ranks) if rank.poll() is None]
    for number in hung:
        ranks[number].kill()
        ranks[number].wait()
    return hung


def report(first: int, codes: Sequence[int], hung: Sequence[int]) -> int:
    """Say which rank failed, if one did, and return the exit code."""
    if not any(codes) or (first == 0 and codes[0] in (2, 128 + signal.SIGINT, 128 + signal.SIGTERM)):
        return codes[0]
    print(f"error: rank {first} {how_it_ended(codes[first])}; all ranks were stopped", file=sys.stderr)
    for number in hung:
        print(f"error: rank {number} did not react any more and was killed", file=sys.stderr)
    return 1


def how_it_ended(code: int) -> str:
    """What an exit code of a process means."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
